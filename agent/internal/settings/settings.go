// Package settings holds what the host has told the agent by POST /init.
package settings

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Settings is one consistent state. Treat it and its map as read-only.
type Settings struct {
	SandboxID      string
	TemplateID     string
	AccessToken    string
	EnvVars        map[string]string
	DefaultUser    string
	DefaultWorkdir string
	Initialised    bool
	// SecretEnv names the variables that a copy of the sandbox does not inherit, LifeID the last restore.
	SecretEnv []string
	LifeID    string
}

// Store keeps the current Settings; readers never wait.
type Store struct {
	writing sync.Mutex
	current atomic.Pointer[Settings]
}

// NewStore starts with the default user "user".
func NewStore() *Store {
	s := &Store{}
	s.current.Store(&Settings{DefaultUser: "user"})
	return s
}

// Get returns the current settings.
func (s *Store) Get() *Settings { return s.current.Load() }

// Update replaces the settings by a copy that change has edited.
func (s *Store) Update(change func(*Settings)) {
	s.writing.Lock()
	defer s.writing.Unlock()
	next := *s.current.Load()
	next.EnvVars = maps.Clone(next.EnvVars)
	change(&next)
	s.current.Store(&next)
}
