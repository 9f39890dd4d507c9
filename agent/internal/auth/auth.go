// Package auth decides who may call what: the sandbox's access token, signed file URLs, and the host's secret.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/wire"
)

const (
	tokenHeader  = "X-Access-Token"
	secretHeader = "X-Aenv-Host-Secret"
	unauthorized = "unauthorized access, please provide a valid access token or method signing if supported"
)

// Operation is what a signed URL allows.
type Operation string

const (
	Read  Operation = "read"
	Write Operation = "write"
)

// Guard checks credentials. With a verifier and before an access token is set, it refuses everybody but the host.
type Guard struct {
	settings *settings.Store
	verifier atomic.Pointer[Verifier]
	now      func() time.Time
}

// NewGuard takes the hash of the host's secret; nil means that there is no host.
func NewGuard(store *settings.Store, verifier *Verifier, now func() time.Time) *Guard {
	g := &Guard{settings: store, now: now}
	g.verifier.Store(verifier)
	return g
}

// Verifier is the sha256 of the host's secret.
type Verifier [sha256.Size]byte

// ParseVerifier reads 64 hex digits.
func ParseVerifier(text string) (*Verifier, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != sha256.Size {
		return nil, errors.New("the host verifier must be the sha256 of the host secret as 64 hex digits")
	}
	return (*Verifier)(raw), nil
}

// SetVerifier replaces the hash of the host's secret.
func (g *Guard) SetVerifier(verifier *Verifier) { g.verifier.Store(verifier) }

// Host lets only the host through; to others these routes do not exist.
func (g *Guard) Host(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.isHost(r) {
			wire.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Guard) isHost(r *http.Request) bool {
	verifier, secret := g.verifier.Load(), r.Header.Get(secretHeader)
	if verifier == nil || secret == "" {
		return false
	}
	sum := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(sum[:], verifier[:]) == 1
}

// Token lets through who holds the sandbox's access token.
func (g *Guard) Token(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, open := g.token(); !open && !same(r.Header.Get(tokenHeader), token) {
			wire.Fail(w, http.StatusUnauthorized, unauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Signed lets through who holds the token or a signature for this path, operation and user.
func (g *Guard) Signed(operation Operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.checkSigned(operation, r); err != nil {
			wire.Fail(w, http.StatusUnauthorized, err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Guard) checkSigned(operation Operation, r *http.Request) error {
	token, open := g.token()
	if open {
		return nil
	}
	if given := r.Header.Get(tokenHeader); given != "" || token == "" {
		if !same(given, token) {
			return errors.New(unauthorized)
		}
		return nil
	}
	query := r.URL.Query()
	signature, expiration := query.Get("signature"), query.Get("signature_expiration")
	if signature == "" {
		return errors.New("missing signature query parameter")
	}
	if !same(signature, Sign(query.Get("path"), operation, query.Get("username"), token, expiration)) {
		return errors.New("invalid signature")
	}
	if expiration == "" {
		return nil
	}
	if until, err := strconv.ParseInt(expiration, 10, 64); err != nil || until < g.now().Unix() {
		return errors.New("signature is already expired")
	}
	return nil
}

// token returns the access token, and whether none is needed (no token and no host to set one).
func (g *Guard) token() (token string, open bool) {
	token = g.settings.Get().AccessToken
	return token, token == "" && g.verifier.Load() == nil
}

// Sign computes the signature of a file URL as E2B's SDKs do.
func Sign(path string, operation Operation, user, token, expiration string) string {
	raw := fmt.Sprintf("%s:%s:%s:%s", path, operation, user, token)
	if expiration != "" {
		raw += ":" + expiration
	}
	sum := sha256.Sum256([]byte(raw))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// same compares in constant time; an empty secret equals nothing.
func same(given, secret string) bool {
	return secret != "" && subtle.ConstantTimeCompare([]byte(given), []byte(secret)) == 1
}
