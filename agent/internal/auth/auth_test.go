package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"aenv.dev/agent/internal/settings"
)

const (
	token  = "token-1"
	secret = "host-secret"
)

var now = time.Unix(1_800_000_000, 0)

func guard(t *testing.T, token string, hosted bool) *Guard {
	t.Helper()
	store := settings.NewStore()
	store.Update(func(s *settings.Settings) { s.AccessToken = token })
	var verifier *Verifier
	if hosted {
		sum := sha256.Sum256([]byte(secret))
		var err error
		if verifier, err = ParseVerifier(hex.EncodeToString(sum[:])); err != nil {
			t.Fatal(err)
		}
	}
	return NewGuard(store, verifier, func() time.Time { return now })
}

func status(handler func(http.Handler) http.Handler, target string, headers map[string]string) (int, string) {
	request := httptest.NewRequest(http.MethodGet, target, nil)
	for name, value := range headers {
		request.Header.Set(name, value)
	}
	recorder := httptest.NewRecorder()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	handler(ok).ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String()
}

func TestSignIsWhatTheSDKsCompute(t *testing.T) {
	// The values come from get_signature of the Python SDK 2.63.0.
	cases := []struct{ path, user, expiration, want string }{
		{"/a b.txt", "", "", "v1_ArLdY3unixnQdr5mppttn/EKJ69y1TEvj4ISKwqsFZ8"},
		{"x", "root", "1800000100", "v1_FWb6Enc4YAg0cLQS2fsi8ECCDTgK4hX1DBv6bLMpzs8"},
	}
	for _, c := range cases {
		if got := Sign(c.path, Read, c.user, token, c.expiration); got != c.want {
			t.Errorf("Sign(%q, %q, %q) = %s, want %s", c.path, c.user, c.expiration, got, c.want)
		}
	}
}

func TestToken(t *testing.T) {
	cases := []struct {
		name    string
		token   string
		hosted  bool
		headers map[string]string
		want    int
	}{
		{"right", token, true, map[string]string{"X-Access-Token": token}, 200},
		{"wrong", token, true, map[string]string{"X-Access-Token": "other"}, 401},
		{"missing", token, true, nil, 401},
		{"before init", "", true, nil, 401},
		{"before init, empty", "", true, map[string]string{"X-Access-Token": ""}, 401},
		{"no host, no token", "", false, nil, 200},
		{"no host, token set", token, false, nil, 401},
		{"the host's secret opens nothing else", token, true, map[string]string{"X-Aenv-Host-Secret": secret}, 401},
	}
	for _, c := range cases {
		if got, _ := status(guard(t, c.token, c.hosted).Token, "/", c.headers); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestSigned(t *testing.T) {
	sign := func(operation Operation, user, expiration string) string {
		query := url.Values{"path": {"/f"}, "signature": {Sign("/f", operation, user, token, expiration)}}
		if user != "" {
			query.Set("username", user)
		}
		if expiration != "" {
			query.Set("signature_expiration", expiration)
		}
		return "/files?" + query.Encode()
	}
	cases := []struct {
		name, target string
		headers      map[string]string
		want         int
		message      string
	}{
		{"signed", sign(Read, "", ""), nil, 200, ""},
		{"signed for a user", sign(Read, "root", ""), nil, 200, ""},
		{"not yet expired", sign(Read, "", "1800000000"), nil, 200, ""},
		{"expired", sign(Read, "", "1799999999"), nil, 401, "signature is already expired"},
		{"expiration removed", "/files?path=/f&signature=" + url.QueryEscape(Sign("/f", Read, "", token, "1900000000")),
			nil, 401, "invalid signature"},
		{"for writing", sign(Write, "", ""), nil, 401, "invalid signature"},
		{"user added", sign(Read, "", "") + "&username=root", nil, 401, "invalid signature"},
		{"none", "/files?path=/f", nil, 401, "missing signature query parameter"},
		{"token instead", "/files?path=/f", map[string]string{"X-Access-Token": token}, 200, ""},
		{"wrong token beside a good signature", sign(Read, "", ""), map[string]string{"X-Access-Token": "x"}, 401, unauthorized},
	}
	for _, c := range cases {
		signed := func(next http.Handler) http.Handler { return guard(t, token, true).Signed(Read, next) }
		got, body := status(signed, c.target, c.headers)
		want := ""
		if c.message != "" {
			want = `{"code":401,"message":"` + c.message + `"}`
		}
		if got != c.want || body != want {
			t.Errorf("%s: %d %s, want %d %s", c.name, got, body, c.want, want)
		}
	}
	if got, _ := status(func(n http.Handler) http.Handler { return guard(t, "", true).Signed(Read, n) },
		"/files?path=/f&signature="+url.QueryEscape(Sign("/f", Read, "", "", "")), nil); got != 401 {
		t.Errorf("a signature with the empty token before init: %d, want 401", got)
	}
}

func TestHost(t *testing.T) {
	hosted := guard(t, token, true)
	cases := []struct {
		name    string
		guard   *Guard
		headers map[string]string
		want    int
	}{
		{"secret", hosted, map[string]string{"X-Aenv-Host-Secret": secret}, 200},
		{"wrong secret", hosted, map[string]string{"X-Aenv-Host-Secret": "x"}, 404},
		{"no secret", hosted, nil, 404},
		{"access token", hosted, map[string]string{"X-Access-Token": token}, 404},
		{"no host", guard(t, token, false), map[string]string{"X-Aenv-Host-Secret": ""}, 404},
	}
	for _, c := range cases {
		if got, _ := status(c.guard.Host, "/init", c.headers); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestParseVerifierRefusesWhatIsNoHash(t *testing.T) {
	for _, text := range []string{"", "abc", "zz", hex.EncodeToString(make([]byte, 31))} {
		if _, err := ParseVerifier(text); err == nil {
			t.Errorf("ParseVerifier(%q) succeeded", text)
		}
	}
}
