package files

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"
	"time"

	"aenv.dev/agent/internal/clock"
	"aenv.dev/agent/internal/storage"
	"aenv.dev/agent/internal/users"
	"aenv.dev/agent/internal/wire"
)

const (
	metadataHeader = "X-Metadata-"
	// idleUpload is how long an upload may stand still before it is given up.
	idleUpload = 2 * time.Minute
)

func (f *Files) upload(w http.ResponseWriter, r *http.Request) {
	body := f.patient(w, r)
	defer body.relax()
	files, err := f.receive(r, body)
	if err != nil {
		// Clients that send all before they read need the rest taken off their hands to see the answer.
		_, _ = io.Copy(io.Discard, body)
		fail(w, err)
		return
	}
	wire.JSON(w, http.StatusOK, files)
}

func (f *Files) receive(r *http.Request, body io.Reader) ([]written, error) {
	user, err := f.user(r)
	if err != nil {
		return nil, err
	}
	metadata := requestedMetadata(r.Header)
	if err := storage.CheckMetadata(metadata); err != nil {
		return nil, badRequest{err}
	}
	body, err = decoded(body, r.Header.Get("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, badRequest{fmt.Errorf("invalid Content-Type: %w", err)}
	}
	path := r.URL.Query().Get("path")
	switch media {
	case "application/octet-stream":
		if path == "" {
			return nil, badRequest{errors.New("an application/octet-stream upload needs the path parameter")}
		}
		file, err := f.write(user, path, body, metadata)
		return []written{file}, err
	case "multipart/form-data":
		return f.receiveParts(user, path, multipart.NewReader(body, parameters["boundary"]), metadata)
	}
	return nil, badRequest{fmt.Errorf("Content-Type '%s' is neither multipart/form-data nor application/octet-stream", media)}
}

// receiveParts writes each part named "file". A failing part ends the upload; the ones before it stay.
func (f *Files) receiveParts(
	user users.User, path string, parts *multipart.Reader, metadata map[string]string,
) ([]written, error) {
	files := []written{}
	seen := map[string]bool{}
	for {
		part, err := parts.NextRawPart()
		switch {
		case errors.Is(err, io.EOF) && len(files) == 0:
			return nil, badRequest{errors.New("the upload has no part named 'file'")}
		case errors.Is(err, io.EOF):
			return files, nil
		case err != nil:
			return nil, badRequest{fmt.Errorf("invalid multipart body: %w", err)}
		case part.FormName() != "file":
			continue
		}
		target := path
		if target == "" {
			target = fileName(part)
		}
		if target == "" {
			return nil, badRequest{errors.New("a part has neither a file name nor a path parameter")}
		}
		if seen[target] {
			return nil, badRequest{fmt.Errorf("several parts would be written to '%s'", target)}
		}
		seen[target] = true
		file, err := f.write(user, target, part, metadata)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
}

// fileName is the part's whole file name, which is a path here; mime/multipart would give its last element only.
func fileName(part *multipart.Part) string {
	_, parameters, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return parameters["filename"]
}

func decoded(body io.Reader, encoding string) (io.Reader, error) {
	switch encoding {
	case "", "identity":
		return body, nil
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, badRequest{fmt.Errorf("invalid gzip body: %w", err)}
		}
		return unzipped, nil
	}
	return nil, badRequest{fmt.Errorf("Content-Encoding '%s' is not supported: use gzip or none", encoding)}
}

func requestedMetadata(header http.Header) map[string]string {
	var metadata map[string]string
	for name, values := range header {
		if key, ok := strings.CutPrefix(name, metadataHeader); ok {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[strings.ToLower(key)] = values[0]
		}
	}
	return metadata
}

// patientBody gives every read of an upload its own time limit, in running time.
type patientBody struct {
	body    io.Reader
	control *http.ResponseController
	limit   *clock.Timer
}

func (f *Files) patient(w http.ResponseWriter, r *http.Request) *patientBody {
	control := http.NewResponseController(w)
	give := func() { _ = control.SetReadDeadline(time.Unix(1, 0)) }
	return &patientBody{body: r.Body, control: control, limit: f.clock.AfterFunc(idleUpload, give)}
}

func (p *patientBody) Read(buffer []byte) (int, error) {
	p.limit.Reset(idleUpload)
	return p.body.Read(buffer)
}

func (p *patientBody) relax() {
	p.limit.Stop()
	_ = p.control.SetReadDeadline(time.Time{})
}
