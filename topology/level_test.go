package topology

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseLevels(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("x=y;", maxLevels+1), ";")
	for _, c := range []struct {
		text string
		want []Level
		err  string
	}{
		{text: "rack=r", want: []Level{{"rack", []string{"r"}}}},
		{
			text: "zone=topology.kubernetes.io/zone;rack=example.com/rack|rack_v1.2;q-1=Q",
			want: []Level{{"zone", []string{"topology.kubernetes.io/zone"}}, {"rack", []string{"example.com/rack", "rack_v1.2"}}, {"q-1", []string{"Q"}}},
		},
		{text: "rack=rack", want: []Level{{"rack", []string{"rack"}}}},
		{text: "", err: `"": want name=label or name=label|label`},
		{text: "rack", err: `"rack": want name=label or name=label|label`},
		{text: "rack=r;", err: `"": want name=label or name=label|label`},
		{text: "rack=r;;zone=z", err: `"": want name=label or name=label|label`},
		{text: "=r", err: `"": a level's name has lower-case letters, digits and '-'`},
		{text: "Rack=r", err: `"Rack": a level's name has lower-case letters, digits and '-'`},
		{text: " rack=r", err: `" rack": a level's name has lower-case letters, digits and '-'`},
		{text: "rack-=r", err: `"rack-": a level's name has lower-case letters, digits and '-'`},
		{text: strings.Repeat("r", 64) + "=r", err: `"` + strings.Repeat("r", 64) + `": a level's name has lower-case letters, digits and '-'`},
		{text: "cluster=r", err: `"cluster" is a level of its own already`},
		{text: "zone=z;host=r", err: `"host" is a level of its own already`},
		{text: "rack=", err: `level rack: "" is not a label key`},
		{text: "rack=r|", err: `level rack: "" is not a label key`},
		{text: "rack=/r", err: `level rack: "/r" is not a label key`},
		{text: "rack=a/b/c", err: `level rack: "a/b/c" is not a label key`},
		{text: "rack=r s", err: `level rack: "r s" is not a label key`},
		{text: "rack=x=y", err: `level rack: "x=y" is not a label key`},
		{text: "rack=" + strings.Repeat("r", 64), err: `level rack: "` + strings.Repeat("r", 64) + `" is not a label key`},
		{text: "rack=r;rack=s", err: "level rack is there twice"},
		{text: "zone=x;rack=x", err: "level rack: label x is used already, in level zone"},
		{text: "rack=x|x", err: "level rack: label x is used already, in level rack"},
		{text: many, err: "17 levels; there may be at most 16"},
	} {
		got, err := ParseLevels(c.text)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if diff := cmp.Diff(c.want, got); text != c.err || diff != "" {
			t.Errorf("%q: error %q, want %q; %s", c.text, text, c.err, diff)
		}
	}
}

// spell is the inverse of ParseLevels.
func spell(levels []Level) string {
	parts := make([]string, 0, len(levels))
	for _, l := range levels {
		parts = append(parts, l.Name+"="+strings.Join(l.Keys, "|"))
	}
	return strings.Join(parts, ";")
}

func TestDefaultLevelsParse(t *testing.T) {
	got, err := ParseLevels(spell(DefaultLevels()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(DefaultLevels(), got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseLevels(f *testing.F) {
	for _, s := range []string{"", ";", "=", "|", "rack=r", "zone=z;rack=a|b/c", "cluster=x", spell(DefaultLevels())} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		levels, err := ParseLevels(text)
		if err != nil {
			if levels != nil || err.Error() == "" || len(err.Error()) > 1024 {
				t.Fatalf("%d levels, error %q", len(levels), err)
			}
			return
		}
		if spell(levels) != text {
			t.Fatalf("%q was read as %q", text, spell(levels))
		}
		if tree := Build(levels, nil); tree.Depths() != len(levels)+2 {
			t.Fatalf("%d levels for %q", tree.Depths(), text)
		}
	})
}
