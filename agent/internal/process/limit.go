package process

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"aenv.dev/agent/internal/gen/process/processconnect"
)

const (
	timeoutHeader = "Connect-Timeout-Ms"
	maxDigits     = 10 // of the header, says the Connect protocol
)

type limitKey struct{}

// LimitRunningTime takes the time limit of Start away from the RPC library, whose deadlines a pause of the sandbox uses
// up. What the library would refuse is left to it.
func LimitRunningTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.Header.Get(timeoutHeader)
		millis, err := strconv.ParseInt(text, 10, 64)
		if r.URL.Path == processconnect.ProcessStartProcedure && err == nil && millis > 0 && len(text) <= maxDigits {
			r.Header.Del(timeoutHeader)
			r = r.WithContext(context.WithValue(r.Context(), limitKey{}, time.Duration(millis)*time.Millisecond))
		}
		next.ServeHTTP(w, r)
	})
}

// timeLimit is what the call may take; 0: as long as it likes. Protocols other than Connect set a deadline.
func timeLimit(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), time.Nanosecond)
	}
	limit, _ := ctx.Value(limitKey{}).(time.Duration)
	return limit
}
