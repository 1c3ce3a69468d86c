package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-scheduler/lockstep/api/v1alpha1"
)

func annotated(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p0", UID: "u0", Annotations: annotations}}
}

// Each mistake in a gang's keys is refused by name and value, and none makes the
// pod a single one.
func TestCase_J4_BadInput(t *testing.T) {
	long := strings.Repeat("g", 300)
	good := map[string]string{v1alpha1.Gang: "g", v1alpha1.MinMember: "4"}
	for name, tc := range map[string]struct {
		change map[string]string // "-" removes
		want   string
	}{
		"min not a number":   {map[string]string{v1alpha1.MinMember: "abc"}, `lockstep.scheduler/min-member="abc": want a whole number from 1 to 100000, without spaces`},
		"min with spaces":    {map[string]string{v1alpha1.MinMember: " 4 "}, `lockstep.scheduler/min-member=" 4 ": want a whole number`},
		"min zero":           {map[string]string{v1alpha1.MinMember: "0"}, `min-member="0": want a whole number`},
		"min negative":       {map[string]string{v1alpha1.MinMember: "-3"}, `min-member="-3"`},
		"min plus":           {map[string]string{v1alpha1.MinMember: "+4"}, `min-member="+4"`},
		"min overflows":      {map[string]string{v1alpha1.MinMember: "99999999999999999999"}, `want a whole number`},
		"min missing":        {map[string]string{v1alpha1.MinMember: "-"}, `lockstep.scheduler/min-member="": is missing: how many members must start together?`},
		"key with a typo":    {map[string]string{v1alpha1.Group + "/min-members": "4"}, `lockstep.scheduler/min-members="4": is not a key of Lockstep; did you mean lockstep.scheduler/min-member?`},
		"another key":        {map[string]string{v1alpha1.Group + "/gang-min-member": "4"}, `is not a key of Lockstep; did you mean lockstep.scheduler/min-member?`},
		"strange key":        {map[string]string{v1alpha1.Group + "/zzzzzzzzzzzzzzzzzzz": "4"}, `lockstep.scheduler/zzzzzzzzzzzzzzzzzzz="4": is not a key of Lockstep`},
		"no gang":            {map[string]string{v1alpha1.Gang: "-"}, `the pod names no gang: lockstep.scheduler/gang is missing`},
		"gang empty":         {map[string]string{v1alpha1.Gang: ""}, `a gang's name must not be empty`},
		"gang too long":      {map[string]string{v1alpha1.Gang: long}, `(300 characters): a gang's name has at most 253 characters`},
		"gang unicode":       {map[string]string{v1alpha1.Gang: "gäng"}, `lockstep.scheduler/gang="gäng": a gang's name has only`},
		"gang newline":       {map[string]string{v1alpha1.Gang: "a\nb"}, `lockstep.scheduler/gang="a\nb": a gang's name has only`},
		"gang path":          {map[string]string{v1alpha1.Gang: "../x"}, `a gang's name has only`},
		"gang glob":          {map[string]string{v1alpha1.Gang: "a*"}, `a gang's name has only`},
		"gang colon":         {map[string]string{v1alpha1.Gang: "pod:x"}, `a gang's name has only`},
		"role":               {map[string]string{v1alpha1.Role: "Worker_1"}, `lockstep.scheduler/role="Worker_1": a role is a DNS label`},
		"role minimum alone": {map[string]string{v1alpha1.RoleMinMember: "2"}, `lockstep.scheduler/role-min-member="2": lockstep.scheduler/role is missing`},
		"role above gang":    {map[string]string{v1alpha1.RoleMinMember: "5", v1alpha1.Role: "w"}, `is more than lockstep.scheduler/min-member=4`},
		"timeout unit":       {map[string]string{v1alpha1.StartTimeout: "90"}, `lockstep.scheduler/start-timeout="90": want a Go duration`},
		"timeout negative":   {map[string]string{v1alpha1.StartTimeout: "-1m"}, `want a Go duration`},
		"level":              {map[string]string{v1alpha1.TopologyRequired: "Rack 1"}, `want the name of a topology level`},
		"slice":              {map[string]string{v1alpha1.SliceSize: "two"}, `lockstep.scheduler/slice-size="two": want a whole number`},
		"slice divides not":  {map[string]string{v1alpha1.SliceSize: "3"}, `lockstep.scheduler/slice-size="3": does not divide lockstep.scheduler/min-member=4`},
		"late cut":           {map[string]string{v1alpha1.LateRoles: `{"launcher":{"members":1`}, `want JSON such as`},
		"late quantity":      {map[string]string{v1alpha1.LateRoles: `{"launcher":{"members":1,"requests":{"cpu":"one"}}}`}, `role launcher requests "cpu"="one", which is no quantity`},
		"late unknown field": {map[string]string{v1alpha1.LateRoles: `{"launcher":{"member":1}}`}, `want JSON such as`},
		"late empty":         {map[string]string{v1alpha1.LateRoles: `{}`}, `want 1 to 16 roles`},
	} {
		t.Run(name, func(t *testing.T) {
			keys := map[string]string{}
			for _, from := range []map[string]string{good, tc.change} {
				maps.Copy(keys, from)
			}
			for k, v := range keys {
				if v == "-" {
					delete(keys, k)
				}
			}
			_, bad := parseMembership(annotated(keys))
			if bad == nil {
				t.Fatalf("%v was accepted", keys)
			}
			if got := bad.String(); !strings.Contains(got, tc.want) || len(got) > 500 || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if p := readPod(annotated(keys), "nvidia.com/gpu"); p.Key.Name == "" {
				t.Error("the pod would be scheduled as none of ours")
			}
		})
	}
}

func TestParseMembership(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations, labels map[string]string
		want                *membership
	}{
		"none":            {nil, map[string]string{"app": "x"}, nil},
		"by label":        {nil, map[string]string{v1alpha1.Gang: "g", v1alpha1.MinMember: "2"}, &membership{gang: "g", minMember: 2}},
		"annotation wins": {map[string]string{v1alpha1.MinMember: "3"}, map[string]string{v1alpha1.Gang: "g", v1alpha1.MinMember: "2"}, &membership{gang: "g", minMember: 3}},
		"253 characters":  {map[string]string{v1alpha1.Gang: strings.Repeat("g", 253), v1alpha1.MinMember: "1"}, nil, &membership{gang: strings.Repeat("g", 253), minMember: 1}},
		"what we wrote":   {map[string]string{v1alpha1.Attempt: "x", v1alpha1.PinnedTo: "n1"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := annotated(tc.annotations)
			pod.Labels = tc.labels
			got, bad := parseMembership(pod)
			if bad != nil {
				t.Fatal(bad)
			}
			switch {
			case (got == nil) != (tc.want == nil):
				t.Fatalf("got %+v, want %+v", got, tc.want)
			case got != nil && (got.gang != tc.want.gang || got.minMember != tc.want.minMember):
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// Whatever a pod says of its gang, it is either understood or refused with a
// short text that names one of our keys, and never becomes a pod that is none of
// ours.
func FuzzParseMembership(f *testing.F) {
	for _, key := range v1alpha1.UserKeys {
		for _, value := range []string{"", "4", "abc", "rack", "90s", `{"l":{"members":1,"requests":{"cpu":"1"}}}`, "a\nb", "\xff", "*"} {
			f.Add(key, value)
		}
	}
	f.Add(v1alpha1.Group+"/gang-min", "1")
	f.Fuzz(func(t *testing.T, key, value string) {
		if !strings.HasPrefix(key, v1alpha1.Group+"/") || slices.Contains(v1alpha1.OwnKeys, key) || strings.HasPrefix(key, v1alpha1.Group+"/gpu-link-") {
			t.Skip("none of our keys")
		}
		keys := map[string]string{v1alpha1.Gang: "g", v1alpha1.MinMember: "4"}
		keys[key] = value
		m, bad := parseMembership(annotated(keys))
		if m == nil && bad == nil {
			t.Fatal("neither understood nor refused")
		}
		if bad != nil && (!strings.Contains(bad.String(), v1alpha1.Group) || len(bad.String()) > 2*len(key)+700) {
			t.Errorf("refused with %q", bad)
		}
		if bad == nil && (m.minMember < 1 || m.minMember > maxMembers || !gangName.MatchString(m.gang)) {
			t.Errorf("accepted %+v", m)
		}
	})
}
