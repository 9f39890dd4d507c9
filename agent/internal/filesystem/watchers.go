package filesystem

// Watchers holds the watchers that are polled.
type Watchers struct{}
