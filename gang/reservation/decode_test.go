package reservation

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

func FuzzDecode(f *testing.F) {
	r := sample(key, "a", 2)
	body, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add("ns/g", "reserved 1 2\n"+body)
	f.Add("g", "committed 1 2\n{}")
	f.Add("a/b", "x")
	f.Add("a/b", `reserved 1 2`+"\n"+`{"q":[{"cpu":1}],"m":[{"h":"n","r":1}]}`)
	f.Add("a/b", `reserved 1 2`+"\n"+`{"q":[{"cpu":1}],"m":[{"h":"n","r":-1}]}`)
	f.Fuzz(func(t *testing.T, name, record string) {
		r, err := decode(name, record)
		if err != nil {
			return
		}
		for _, m := range r.Members {
			_ = r.Requests[m.Request]
		}
	})
}

// FuzzApply: whatever is in the feed, places and reservations belong together.
func FuzzApply(f *testing.F) {
	r := sample(key, "a", 2)
	body, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add("reserve", "ns/h", "b", "reserved 1 2\n"+body, "1")
	f.Add("commit", "ns/g", "a", "", "")
	f.Add("release", "ns/g", "a", "", "9")
	f.Add("verdict", "ns/g", "", `{"c":"room"}`, "")
	f.Add("other", "g", "", "", "")
	f.Fuzz(func(t *testing.T, op, name, attempt, text, asOf string) {
		c := newContent()
		first := r
		c.put("ns/g", &first)
		_, _, err := c.apply(redis.XMessage{ID: "1-0", Values: map[string]any{
			"rev": "1", "op": op, "gang": name, "attempt": attempt, "record": text, "verdict": text, "asof": asOf,
		}})
		if (err == nil) != (c.revision.Rev == 1) {
			t.Errorf("error %v at revision %d", err, c.revision.Rev)
		}
		for uid, held := range c.seats {
			if e := c.gangs[field(held.Gang)]; e == nil || e.Attempt != held.Attempt || e.Phase != held.Phase {
				t.Errorf("the place of %q is of no reservation: %+v", uid, held)
			}
		}
	})
}
