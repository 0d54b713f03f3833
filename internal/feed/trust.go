package feed

// String names a state as logs, metrics and the admin API do.
func (t Trust) String() string {
	names := [NumTrust]string{"connecting", "warming", "trusted", "gap", "silent", "malformed", "unverifiable", "resync", "diverged", "no-events"}
	if t >= NumTrust {
		return "unknown"
	}
	return names[t]
}
