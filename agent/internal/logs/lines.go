package logs

import (
	"bytes"
	"strings"
)

// Lines cuts one process stream into entries of a ring. Not safe for concurrent use.
type Lines struct {
	ring    *Ring
	stream  Stream
	fields  map[string]string
	partial []byte
}

// Lines returns the writer for one stream of one process.
func (r *Ring) Lines(stream Stream, fields map[string]string) *Lines {
	return &Lines{ring: r, stream: stream, fields: fields}
}

// Write takes the next piece of the stream; what is beyond MaxLine of a line is dropped.
func (l *Lines) Write(chunk []byte) {
	var lines []string
	for len(chunk) > 0 {
		piece, rest, ended := bytes.Cut(chunk, []byte{'\n'})
		switch {
		case ended && len(l.partial) == 0:
			lines = append(lines, text(piece[:min(len(piece), MaxLine)]))
		default:
			l.keep(piece)
			if ended {
				lines = append(lines, text(l.partial))
				l.partial = l.partial[:0]
			}
		}
		chunk = rest
	}
	l.ring.append(l.stream, "info", lines, l.fields)
}

// Close writes what is left of the last line.
func (l *Lines) Close() {
	if len(l.partial) > 0 {
		l.ring.append(l.stream, "info", []string{text(l.partial)}, l.fields)
	}
	l.partial = nil
}

func (l *Lines) keep(piece []byte) {
	room := MaxLine - len(l.partial)
	l.partial = append(l.partial, piece[:min(len(piece), room)]...)
}

// text makes a line valid UTF-8 without a trailing carriage return.
func text(line []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSuffix(line, []byte{'\r'})), "\uFFFD")
}
