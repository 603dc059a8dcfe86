package roles

import (
	"maps"
)

// Control is what operators have set for all roles, and what gaps of the log
// have raised.
type Control struct {
	MasterEnabled bool
	Generation    int64           // rises by one with each change of a switch
	Kinds         map[string]bool // a kind that is not in it is on
	Charters      map[string]Charter
	Raised        int64 // the sum of all raises: where the epoch of a new role starts
}

// Charter is a charter that was issued by command. It holds until the
// configured version of its kind is another than it was then.
type Charter struct {
	Version    string `json:"version"`
	Configured string `json:"configured"`
}

// newControl is how it starts: everything is on.
func newControl() Control { return Control{MasterEnabled: true} }

// enabled reports whether elections for the role are on: its kind is set, has
// or has not a scope as the role, and is not switched off.
func (c *Control) enabled(k Key, s *Settings) bool {
	if k.allowed(s) != nil {
		return false
	}
	on, set := c.Kinds[k.RoleKind]
	return c.MasterEnabled && (on || !set)
}

// charter is the charter that a holder of the kind must acknowledge.
func (c *Control) charter(kind Kind) string {
	if issued, ok := c.Charters[kind.Name]; ok && issued.Configured == kind.CharterVersion {
		return issued.Version
	}
	return kind.CharterVersion
}

// Issue is the control after a charter was issued.
func (c Control) Issue(kind Kind, version string) Control {
	c.Charters = maps.Clone(c.Charters)
	if c.Charters == nil {
		c.Charters = map[string]Charter{}
	}
	c.Charters[kind.Name] = Charter{Version: version, Configured: kind.CharterVersion}
	return c
}

// Settle drops the issued charters that the settings have overtaken.
func (c Control) Settle(s *Settings) (Control, bool) {
	kept := maps.Clone(c.Charters)
	maps.DeleteFunc(kept, func(name string, issued Charter) bool {
		kind, ok := s.kind(name)
		return !ok || kind.CharterVersion != issued.Configured
	})
	changed := len(kept) != len(c.Charters)
	c.Charters = kept
	return c, changed
}

// Switch is the control after an operator set switches: nil and kinds that are
// not named stay. It also says whether anything changed.
func (c Control) Switch(master *bool, kinds map[string]bool) (Control, bool) {
	next := c
	if master != nil {
		next.MasterEnabled = *master
	}
	next.Kinds = maps.Clone(c.Kinds)
	if next.Kinds == nil {
		next.Kinds = map[string]bool{}
	}
	maps.Copy(next.Kinds, kinds)
	maps.DeleteFunc(next.Kinds, func(_ string, on bool) bool { return on }) // on is how kinds start
	if next.MasterEnabled == c.MasterEnabled && maps.Equal(next.Kinds, c.Kinds) {
		return c, false
	}
	next.Generation++
	return next, true
}

// Raises after a gap of the log.
const (
	raiseBase    = 1000
	raiseMissing = 16        // for each missing message: more epochs than one can have caused
	raiseUnknown = 1_000_000 // where nobody knows how many are missing
	maxMissing   = 1 << 40   // keeps the sum within 64 bits for ever
)

// gapRaise is by how much a gap raises epoch and activation_seq.
func gapRaise(missing int64) int64 {
	if missing <= 0 {
		return raiseUnknown
	}
	return raiseBase + raiseMissing*min(missing, maxMissing)
}
