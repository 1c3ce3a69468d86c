package gang

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// request says what one pod takes: its GPUs, or if it has none everything.
func (p *Planner) request(c *Class, free string) string {
	if r := p.s.GPU; r >= 0 && c.Request[r] > 0 {
		return quantity(p.s.Resources[r], c.Request[r]) + " " + free + p.s.Resources[r]
	}
	return p.everything(c, free)
}

func (p *Planner) everything(c *Class, free string) string {
	const shown = 4
	var parts []string
	for r, want := range c.Request {
		if want > 0 && p.s.Resources[r] != "pods" && len(parts) < shown {
			parts = append(parts, quantity(p.s.Resources[r], want)+" "+free+p.s.Resources[r])
		}
	}
	if len(parts) == 0 {
		return "room for a pod"
	}
	return strings.Join(parts, " and ")
}

// kinds lists the classes with the number of their pods.
func (p *Planner) kinds() string {
	const shown = 4
	var parts []string
	for _, d := range p.classes[:min(len(p.classes), shown)] {
		parts = append(parts, fmt.Sprintf("%d with %s", len(d.seats), p.request(&p.s.Classes[d.class], "")))
	}
	if len(p.classes) > shown {
		parts = append(parts, fmt.Sprintf("and %d more", len(p.classes)-shown))
	}
	return strings.Join(parts, ", ")
}

func (p *Planner) amount(r int, n int64) string {
	return quantity(p.s.Resources[r], n) + " " + p.s.Resources[r]
}

// quantity writes an amount as people do: cores, binary bytes, pieces.
func quantity(resource string, n int64) string {
	switch resource {
	case "cpu":
		return decimal(float64(n) / 1000)
	case "memory", "ephemeral-storage":
		units := []string{"", "Ki", "Mi", "Gi", "Ti"}
		v, u := float64(n), 0
		for v >= 1024 && u < len(units)-1 {
			v /= 1024
			u++
		}
		return decimal(v) + units[u]
	}
	return strconv.FormatInt(n, 10)
}

// decimal writes a number with at most three places.
func decimal(v float64) string {
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func isAre(resource string, n int64) string {
	if n == 1 {
		return "1 is"
	}
	return quantity(resource, n) + " are"
}
