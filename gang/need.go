package gang

import (
	"fmt"
	"slices"
	"strings"
)

// Need is what a gang is short of, and who of its pending members fills it.
type Need struct {
	// Required are the pending members, as indices of Gang.Members, that must
	// start together: the fewest that bring the gang to its minimums.
	Required []int
	// Surplus are the other pending members. They start with the gang if there is
	// room for them; nobody waits for them.
	Surplus []int
	// Late are pods to come for which room is kept: roles that come after the
	// gang has started, with the number that does not exist yet.
	Late []LateRole
	// Missing is how many members must be created before the gang can start.
	Missing int
	// Text says how many members exist of those needed, and of which role others
	// are missing; empty if none are.
	Text string
}

// Compare orders keys by namespace, then name.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// counted tells which members fill a place in the gang: those that run, and those
// that have succeeded as siblings of ones that still run or wait. What succeeded
// under another owner belongs to an earlier gang of the same name.
func (g *Gang) counted() []bool {
	owners := map[string]bool{}
	for i := range g.Members {
		if m := &g.Members[i]; m.Owner != "" && (m.Phase == Pending || m.Phase == Bound) {
			owners[m.Owner] = true
		}
	}
	out := make([]bool, len(g.Members))
	for i := range g.Members {
		m := &g.Members[i]
		out[i] = m.Phase == Bound || (m.Phase == Succeeded && owners[m.Owner])
	}
	return out
}

// minMember is the gang's minimum, which is at least one.
func (g *Gang) minMember() int { return max(1, g.Spec.MinMember) }

// isLate tells whether the role's pods come after the gang has started.
func (g *Gang) isLate(role string) bool {
	return slices.ContainsFunc(g.Spec.LateRoles, func(l LateRole) bool { return l.Name == role })
}

// Need works out what the gang is short of. Members of late roles count towards
// the gang's minimum only as room that is kept for them: a gang of three whose
// launcher comes late starts with two.
func (g *Gang) Need() Need {
	need := Need{}
	counted := g.counted()
	role := map[string]int{} // members that fill a place, by role
	total := 0
	for i, ok := range counted {
		if ok {
			role[g.Members[i].Role]++
			total++
		}
	}
	need.Late = g.late(role)
	chosen := make([]bool, len(g.Members))
	take := func(i int) {
		chosen[i] = true
		role[g.Members[i].Role]++
		total++
	}
	for _, r := range g.Spec.Roles {
		for i := range g.Members {
			if role[r.Name] >= r.MinMember {
				break
			}
			if g.Members[i].Phase == Pending && g.Members[i].Role == r.Name {
				take(i)
			}
		}
	}
	kept := 0
	for _, l := range need.Late {
		kept += l.Members
	}
	for i := range g.Members {
		if total+kept >= g.minMember() {
			break
		}
		if g.Members[i].Phase == Pending && !chosen[i] {
			take(i)
		}
	}
	need.divide(g.Members, chosen)
	g.missing(&need, role, total, kept)
	return need
}

// divide tells the chosen pending members from the others.
func (n *Need) divide(members []Member, chosen []bool) {
	for i := range members {
		switch {
		case members[i].Phase != Pending:
		case chosen[i]:
			n.Required = append(n.Required, i)
		default:
			n.Surplus = append(n.Surplus, i)
		}
	}
}

// late gives the late roles' pods that do not exist yet. Pods of them that are
// there already are members like others.
func (g *Gang) late(filled map[string]int) []LateRole {
	var out []LateRole
	for _, l := range g.Spec.LateRoles {
		exist := filled[l.Name]
		for i := range g.Members {
			if g.Members[i].Phase == Pending && g.Members[i].Role == l.Name {
				exist++
			}
		}
		if l.Members > exist {
			l.Members -= exist
			out = append(out, l)
		}
	}
	return out
}

// missing fills in how many members do not exist, and of which roles.
func (g *Gang) missing(need *Need, role map[string]int, total, kept int) {
	inRoles := 0
	var roles []string
	for _, r := range g.Spec.Roles {
		if g.isLate(r.Name) {
			continue
		}
		if short := r.MinMember - role[r.Name]; short > 0 {
			inRoles += short
			roles = append(roles, fmt.Sprintf("role %s has %d of %d", r.Name, role[r.Name], r.MinMember))
		}
	}
	need.Missing = max(inRoles, g.minMember()-total-kept)
	if need.Missing <= 0 {
		need.Missing = 0
		return
	}
	need.Text = fmt.Sprintf("%d of %d members exist; waits for %d more", total+kept, g.minMember(), need.Missing)
	const shown = 4
	if len(roles) > shown {
		roles = append(roles[:shown], fmt.Sprintf("and %d more roles", len(roles)-shown))
	}
	if len(roles) > 0 {
		need.Text += ": " + strings.Join(roles, ", ")
	}
}

// Broken tells whether the gang runs below its minimum: some members are bound,
// but with those that have succeeded they are too few.
func (g *Gang) Broken() bool {
	bound, total := 0, 0
	role := map[string]int{}
	for i, ok := range g.counted() {
		if !ok {
			continue
		}
		total++
		role[g.Members[i].Role]++
		if g.Members[i].Phase == Bound {
			bound++
		}
	}
	if bound == 0 || g.Invalid != "" {
		return false
	}
	late := 0
	for _, l := range g.Spec.LateRoles {
		late += max(0, l.Members-role[l.Name])
	}
	if total+late < g.minMember() {
		return true
	}
	return slices.ContainsFunc(g.Spec.Roles, func(r Role) bool { return !g.isLate(r.Name) && role[r.Name] < r.MinMember })
}
