package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-scheduler/lockstep/extender/cluster"
)

// TestCase_B6_RefusalsOfAnEarlierPlaceDoNotCount: a pinned pod is refused while its
// gang has no place; when the gang has one again, that old refusal says nothing,
// and the pod is woken, once.
func TestCase_B6_RefusalsOfAnEarlierPlaceDoNotCount(t *testing.T) {
	now := noon
	p := &placer{now: func() time.Time { return now }, sent: map[types.UID]sent{}}
	pod := &cluster.Pod{UID: "a", Gated: true}
	if !p.note(pod, "n1", "first") {
		t.Fatal("a gated pod needs no write")
	}
	pod = &cluster.Pod{UID: "a", Pinned: "n1"}
	if p.note(pod, "n1", "first") {
		t.Error("a pinned pod that was not refused needs a write")
	}
	now = now.Add(time.Minute)
	pod = &cluster.Pod{UID: "a", Pinned: "n1", Refused: "1 of 2 members exist", Message: "1 of 2 members exist"}
	if p.note(pod, "n1", "first") {
		t.Error("it was woken for a place that it has had all the time")
	}
	if !p.note(pod, "n1", "second") {
		t.Error("it was not woken for its new place")
	}
	if p.note(pod, "n1", "second") {
		t.Error("it was woken twice")
	}
	at, before := p.placedAt("a")
	if !at.Equal(now) || before != pod.Message {
		t.Errorf("placed at %s with %q before", at, before)
	}
}
