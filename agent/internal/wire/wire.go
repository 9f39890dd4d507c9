// Package wire writes the agent's plain HTTP answers: JSON bodies and JSON errors.
package wire

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// maxJSON bounds the JSON bodies that plain endpoints read.
const maxJSON = 1 << 20

// JSON answers with value.
func JSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		Fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Fail answers with E2B's error body.
func Fail(w http.ResponseWriter, status int, message string) {
	JSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

// NotFound answers for a route that does not exist.
func NotFound(w http.ResponseWriter, r *http.Request) {
	Fail(w, http.StatusNotFound, fmt.Sprintf("no such endpoint: %s %s", r.Method, r.URL.Path))
}

// Read decodes a JSON body of bounded size; unknown fields are ignored.
func Read(w http.ResponseWriter, r *http.Request, into any) error {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON)).Decode(into); err != nil {
		return fmt.Errorf("invalid JSON body: %w", err)
	}
	return nil
}
