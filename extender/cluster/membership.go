package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
	"github.com/lockstep-scheduler/lockstep/gang"
	"github.com/lockstep-scheduler/lockstep/topology"
)

// Limits of what a pod's author may write.
const (
	maxGangName  = 253
	maxMembers   = 100_000
	maxTimeout   = 30 * 24 * time.Hour
	shownValue   = 64 // characters of a bad value that an error quotes
	maxLateRoles = 16
)

// gangName is what a gang may be called: the characters of object names and
// label values, so that no gang is confused with the "pod:" names of single pods.
var gangName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// membership is what a pod says of its gang.
type membership struct {
	gang          string
	role          string
	minMember     int
	roleMinMember int // 0: not set
	late          []lateRole
	required      string
	preferred     string
	sliceSize     int           // 0: not set
	startTimeout  time.Duration // 0: not set
}

type lateRole struct {
	name     string
	members  int
	requests corev1.ResourceList
}

// badInput is a key or value that cannot be honoured. It is a value shown to the
// pod's author, not a fault.
type badInput struct{ key, value, why string }

func (b *badInput) String() string {
	return fmt.Sprintf("%s=%s: %s", b.key, quoted(b.value), b.why)
}

// quoted shortens a value to shownValue characters and escapes what would break
// a line of text.
func quoted(value string) string {
	runes := []rune(value)
	if len(runes) <= shownValue {
		return strconv.Quote(value)
	}
	return strconv.Quote(string(runes[:shownValue])) + fmt.Sprintf("... (%d characters)", len(runes))
}

// ours collects the pod's keys under our prefix; annotations win over labels.
func ours(pod *corev1.Pod) map[string]string {
	var out map[string]string
	for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
		for k, v := range from {
			if strings.HasPrefix(k, v1alpha1.Group+"/") {
				if out == nil {
					out = map[string]string{}
				}
				out[k] = v
			}
		}
	}
	return out
}

// links are what a pod asks of the connection of its GPUs.
type links struct{ required, preferred topology.Requirement }

// parseLinks reads the keys of links, which stand on pods with or without a gang.
func parseLinks(keys map[string]string, gpus int64) (links, *badInput) {
	var l links
	for key, to := range map[string]*topology.Requirement{v1alpha1.GPULinkRequired: &l.required, v1alpha1.GPULinkPreferred: &l.preferred} {
		value, ok := keys[key]
		if !ok {
			continue
		}
		r, err := topology.ParseRequirement(value)
		if err != nil {
			return links{}, &badInput{key, value, "want nvlink, nvswitch, pcie or numa"}
		}
		if gpus == 0 {
			return links{}, &badInput{key, value, "the pod asks for no GPUs"}
		}
		*to = r
	}
	return l, nil
}

// parseMembership reads the pod's gang keys. A pod with none of them gives
// (nil, nil). A pod that carries any of them and cannot be understood gives the
// first mistake in the order of v1alpha1.UserKeys, together with whatever gang
// name could be read, so that its siblings are held with it.
func parseMembership(pod *corev1.Pod) (*membership, *badInput) {
	keys := ours(pod)
	for _, key := range v1alpha1.OwnKeys {
		delete(keys, key)
	}
	delete(keys, v1alpha1.GPULinkRequired) // parseLinks reads these
	delete(keys, v1alpha1.GPULinkPreferred)
	if len(keys) == 0 {
		return nil, nil
	}
	m := &membership{}
	name, ok := keys[v1alpha1.Gang]
	if bad := checkName(name, ok, keys); bad != nil {
		return nil, bad
	}
	m.gang = name
	for _, key := range v1alpha1.UserKeys {
		value, ok := keys[key]
		if !ok {
			continue
		}
		if parse := parsers[key]; parse != nil {
			if why := parse(m, value); why != "" {
				return m, &badInput{key, value, why}
			}
		}
		delete(keys, key)
	}
	if unknown := slices.Sorted(maps.Keys(keys)); len(unknown) > 0 {
		return m, unknownKey(unknown[0], keys[unknown[0]])
	}
	return m, m.consistent()
}

func checkName(name string, ok bool, keys map[string]string) *badInput {
	switch {
	case !ok:
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(v1alpha1.UserKeys, key) {
				return unknownKey(key, keys[key])
			}
		}
		first := slices.Sorted(maps.Keys(keys))[0]
		return &badInput{first, keys[first], "the pod names no gang: " + v1alpha1.Gang + " is missing"}
	case name == "":
		return &badInput{v1alpha1.Gang, name, "a gang's name must not be empty"}
	case len(name) > maxGangName:
		return &badInput{v1alpha1.Gang, name, fmt.Sprintf("a gang's name has at most %d characters", maxGangName)}
	case !gangName.MatchString(name):
		return &badInput{v1alpha1.Gang, name, "a gang's name has only letters, digits, '-', '_' and '.', and starts and ends with a letter or digit"}
	}
	return nil
}

// parsers read one value each into the membership and say why they cannot.
var parsers = map[string]func(*membership, string) string{
	v1alpha1.MinMember:     func(m *membership, v string) string { return parseCount(&m.minMember, v) },
	v1alpha1.RoleMinMember: func(m *membership, v string) string { return parseCount(&m.roleMinMember, v) },
	v1alpha1.SliceSize:     func(m *membership, v string) string { return parseCount(&m.sliceSize, v) },
	v1alpha1.Role: func(m *membership, v string) string {
		m.role = v
		if errs := validation.IsDNS1123Label(v); len(errs) > 0 {
			return "a role is a DNS label: lower-case letters, digits and '-', at most 63"
		}
		return ""
	},
	v1alpha1.TopologyRequired: func(m *membership, v string) string {
		m.required = v
		return parseLevel(v)
	},
	v1alpha1.TopologyPreferred: func(m *membership, v string) string {
		m.preferred = v
		return parseLevel(v)
	},
	v1alpha1.StartTimeout: func(m *membership, v string) string {
		d, err := time.ParseDuration(v)
		if err != nil || d < time.Second || d > maxTimeout {
			return "want a Go duration from 1s to 720h, such as 90s or 2h"
		}
		m.startTimeout = d
		return ""
	},
	v1alpha1.LateRoles: parseLateRoles,
}

func parseCount(into *int, v string) string {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxMembers || strconv.Itoa(n) != v {
		return fmt.Sprintf("want a whole number from 1 to %d, without spaces", maxMembers)
	}
	*into = n
	return ""
}

func parseLevel(v string) string {
	if errs := validation.IsDNS1123Label(v); len(errs) > 0 {
		return "want the name of a topology level, such as rack"
	}
	return ""
}

func parseLateRoles(m *membership, v string) string {
	const want = `want JSON such as {"launcher":{"members":1,"requests":{"cpu":"1"}}}`
	var roles map[string]struct {
		Members  int               `json:"members"`
		Requests map[string]string `json:"requests"`
	}
	dec := json.NewDecoder(strings.NewReader(v))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&roles); err != nil || dec.More() {
		return want
	}
	if len(roles) == 0 || len(roles) > maxLateRoles {
		return fmt.Sprintf("want 1 to %d roles", maxLateRoles)
	}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		role := roles[name]
		if len(validation.IsDNS1123Label(name)) > 0 || role.Members < 1 || role.Members > maxMembers {
			return want
		}
		requests := corev1.ResourceList{}
		for resourceName, amount := range role.Requests {
			q, err := resource.ParseQuantity(amount)
			if err != nil || q.Sign() < 0 || len(validation.IsQualifiedName(resourceName)) > 0 {
				return fmt.Sprintf("role %s requests %s=%s, which is no quantity", name, quoted(resourceName), quoted(amount))
			}
			requests[corev1.ResourceName(resourceName)] = q
		}
		m.late = append(m.late, lateRole{name, role.Members, requests})
	}
	return ""
}

// consistent checks what no single value shows.
func (m *membership) consistent() *badInput {
	switch {
	case m.minMember == 0:
		return &badInput{v1alpha1.MinMember, "", "is missing: how many members must start together?"}
	case m.roleMinMember > 0 && m.role == "":
		return &badInput{v1alpha1.RoleMinMember, strconv.Itoa(m.roleMinMember), v1alpha1.Role + " is missing"}
	case m.sliceSize > 1 && m.role == "" && m.minMember%m.sliceSize != 0:
		return &badInput{v1alpha1.SliceSize, strconv.Itoa(m.sliceSize), fmt.Sprintf("does not divide %s=%d", v1alpha1.MinMember, m.minMember)}
	case m.roleMinMember > m.minMember:
		return &badInput{v1alpha1.RoleMinMember, strconv.Itoa(m.roleMinMember), fmt.Sprintf("is more than %s=%d", v1alpha1.MinMember, m.minMember)}
	}
	return nil
}

// unknownKey refuses a key under our prefix that we do not know: a typo there
// would silently undo what its author meant.
func unknownKey(key, value string) *badInput {
	best, distance := "", 6
	for _, known := range v1alpha1.UserKeys {
		d := editDistance(key, known)
		// A key with something added means the key it contains, the longest one.
		if bare := strings.TrimPrefix(known, v1alpha1.Group+"/"); strings.Contains(key, bare) {
			d = -len(bare)
		}
		if d < distance {
			best, distance = known, d
		}
	}
	why := "is not a key of Lockstep"
	if best != "" {
		why += "; did you mean " + best + "?"
	}
	return &badInput{key, value, why}
}

// editDistance is Levenshtein's, by bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// specOf merges what the gang's pods say: the newest pod's word counts, and each
// role's minimum is that of the newest pod of the role.
func specOf(pods []*Pod) gang.Spec {
	newest := slices.MaxFunc(pods, (*Pod).byAge)
	m := newest.membership
	spec := gang.Spec{
		MinMember: m.minMember, Required: m.required, Preferred: m.preferred, Slice: m.sliceSize,
		StartTimeout: m.startTimeout, Priority: newest.priority,
	}
	byRole := map[string]*Pod{}
	for _, p := range pods {
		if p.membership.roleMinMember == 0 {
			continue
		}
		if last := byRole[p.membership.role]; last == nil || last.byAge(p) < 0 {
			byRole[p.membership.role] = p
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byRole)) {
		spec.Roles = append(spec.Roles, gang.Role{Name: name, MinMember: byRole[name].membership.roleMinMember})
	}
	return spec
}
