package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"aenv.dev/agent/internal/auth"
	"aenv.dev/agent/internal/settings"
	"aenv.dev/agent/internal/wire"
)

const maxLifeID = 128

var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// initRequest is the body of POST /init. An absent field leaves things as they are.
type initRequest struct {
	SandboxID      *string            `json:"sandboxId"`
	TemplateID     *string            `json:"templateId"`
	AccessToken    *string            `json:"accessToken"`
	EnvVars        *map[string]string `json:"envVars"`
	DefaultUser    *string            `json:"defaultUser"`
	DefaultWorkdir *string            `json:"defaultWorkdir"`
	Hostname       *string            `json:"hostname"`
	Hosts          *string            `json:"hosts"`
	DNSServers     *[]string          `json:"dnsServers"`
	Timestamp      *time.Time         `json:"timestamp"`
	NextVerifier   *string            `json:"nextVerifier"`
	SecretEnv      *[]string          `json:"secretEnv"`
	Restored       bool               `json:"restored"`
	Resumed        bool               `json:"resumed"`
	LifeID         string             `json:"lifeId"`
	Away           float64            `json:"away"`
	MachineID      *string            `json:"machineId"`

	next *auth.Verifier
}

// init applies what can fail first, so that a failed call changes no credential and can be repeated. After a call with
// nextVerifier whose answer was lost, the old secret meets 404 and the new one works. After a restore nothing fails the
// call: a full disk must not strand the sandbox.
func (h *Host) init(w http.ResponseWriter, r *http.Request) {
	var request initRequest
	if err := wire.Read(w, r, &request); err != nil {
		wire.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if err := request.check(); err != nil {
		wire.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	h.initialising.Lock()
	defer h.initialising.Unlock()
	before := h.Settings.Get()
	begins := request.Restored && request.LifeID != before.LifeID
	renewed := !request.Resumed && (begins || !before.Initialised)
	err := h.configure(&request, renewed)
	if err != nil && !request.Restored {
		wire.Fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	if request.next != nil {
		h.Guard.SetVerifier(request.next)
	}
	if begins {
		h.begin(context.WithoutCancel(r.Context()), &request, err)
	} else {
		h.Settings.Update(request.apply)
	}
	if request.Restored && len(h.failures) > 0 {
		wire.JSON(w, http.StatusOK, map[string]any{"failures": h.failures})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// check refuses a bad request before anything is changed.
func (q *initRequest) check() (err error) {
	if q.NextVerifier != nil && *q.NextVerifier != "" {
		if q.next, err = auth.ParseVerifier(*q.NextVerifier); err != nil {
			return fmt.Errorf("nextVerifier: %w", err)
		}
	}
	if q.EnvVars != nil {
		for name, value := range *q.EnvVars {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
				return fmt.Errorf("envVars: invalid environment variable %q", name)
			}
		}
	}
	if q.DNSServers != nil {
		for _, server := range *q.DNSServers {
			if _, err := netip.ParseAddr(server); err != nil {
				return fmt.Errorf("dnsServers: '%s' is not an IP address", server)
			}
		}
	}
	if q.Restored && (q.LifeID == "" || len(q.LifeID) > maxLifeID) {
		return fmt.Errorf("lifeId: a restore needs one of 1 to %d characters", maxLifeID)
	}
	if q.MachineID != nil && *q.MachineID != "" && !machineID.MatchString(*q.MachineID) {
		return errors.New("machineId: it is 32 lower-case hex digits")
	}
	if q.DefaultWorkdir != nil && *q.DefaultWorkdir != "" && !strings.HasPrefix(*q.DefaultWorkdir, "/") {
		return fmt.Errorf("defaultWorkdir: '%s' is not an absolute path", *q.DefaultWorkdir)
	}
	return nil
}

func (q *initRequest) apply(s *settings.Settings) {
	set(&s.SandboxID, q.SandboxID)
	set(&s.TemplateID, q.TemplateID)
	set(&s.AccessToken, q.AccessToken)
	set(&s.EnvVars, q.EnvVars)
	set(&s.DefaultWorkdir, q.DefaultWorkdir)
	if q.DefaultUser != nil && *q.DefaultUser != "" {
		s.DefaultUser = *q.DefaultUser
	}
	if q.SecretEnv != nil {
		s.SecretEnv = *q.SecretEnv
	}
	if q.Restored {
		s.LifeID = q.LifeID
	}
	s.Initialised = true
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}
