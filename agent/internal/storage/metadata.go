package storage

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	attributePrefix = "user.e2b."
	maxKey          = 246
	maxMetadata     = 4096
)

// CheckMetadata refuses what cannot be stored: keys and values are printable ASCII of bounded size.
func CheckMetadata(metadata map[string]string) error {
	total := 0
	for key, value := range metadata {
		switch {
		case key == "" || !printable(key):
			return fmt.Errorf("metadata key %q must be printable US-ASCII and not empty", key)
		case !printable(value):
			return fmt.Errorf("the value of metadata key '%s' must be printable US-ASCII", key)
		case len(key) > maxKey:
			return fmt.Errorf("metadata key '%.32s…' is longer than %d bytes", key, maxKey)
		}
		total += len(attributePrefix) + len(key) + len(value)
	}
	if total > maxMetadata {
		return fmt.Errorf("the metadata takes %d bytes, more than the %d that a file can hold", total, maxMetadata)
	}
	return nil
}

func printable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < 0x20 || r > 0x7e }) < 0
}

// Metadata reads what is stored on a file; nil when there is none, or no place for it.
func Metadata(path string) map[string]string {
	var metadata map[string]string
	for _, name := range attributes(path) {
		key, ours := strings.CutPrefix(name, attributePrefix)
		if !ours {
			continue
		}
		value := make([]byte, maxMetadata)
		if n, err := unix.Getxattr(path, name, value); err == nil {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = string(value[:n])
		}
	}
	return metadata
}

// attributes lists the names of a file's extended attributes.
func attributes(path string) []string {
	var short [512]byte
	names := short[:]
	for {
		n, err := unix.Listxattr(path, names)
		switch {
		case err == nil:
			return strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 })
		case errors.Is(err, unix.ERANGE) && len(names) < 64<<10:
			names = make([]byte, 64<<10)
		default:
			return nil
		}
	}
}

// ReplaceMetadata stores metadata on an open file and drops what was stored before.
func ReplaceMetadata(file *os.File, metadata map[string]string) error {
	for _, name := range attributes(file.Name()) {
		if key, ours := strings.CutPrefix(name, attributePrefix); ours {
			if _, stays := metadata[key]; !stays {
				_ = unix.Fremovexattr(int(file.Fd()), name)
			}
		}
	}
	for key, value := range metadata {
		err := unix.Fsetxattr(int(file.Fd()), attributePrefix+key, []byte(value), 0)
		if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
			return ErrNoMetadata
		}
		if err != nil {
			return &os.PathError{Op: "setxattr", Path: file.Name(), Err: err}
		}
	}
	return nil
}
