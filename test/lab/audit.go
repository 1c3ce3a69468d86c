package lab

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

//go:embed audit-policy.yaml
var podWritesPolicy []byte

// AuditKey is what CountAudit counts by.
type AuditKey struct {
	User     string // such as system:kube-scheduler
	Verb     string // such as patch
	Resource string // such as pods or pods/binding
	Code     int    // the HTTP status of the answer
}

// AuditCount is a number of requests that have their key in common.
type AuditCount struct {
	AuditKey
	Requests int
}

// CountAudit counts the finished requests in an audit log by user, verb, resource
// and status, sorted by these. kube-apiserver writes a line before it answers,
// so everything a caller has seen answered is counted.
func CountAudit(path string) ([]AuditCount, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	counts, err := countAudit(file)
	if err != nil {
		return nil, fmt.Errorf("reading the audit log %s: %w", path, err)
	}
	return counts, nil
}

func countAudit(log io.Reader) ([]AuditCount, error) {
	requests := map[AuditKey]int{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what follows the last newline is still being written
		}
		if err != nil {
			return nil, err
		}
		var event struct {
			Stage string `json:"stage"`
			Verb  string `json:"verb"`
			User  struct {
				Username string `json:"username"`
			} `json:"user"`
			ObjectRef struct {
				Resource    string `json:"resource"`
				Subresource string `json:"subresource"`
			} `json:"objectRef"`
			ResponseStatus struct {
				Code int `json:"code"`
			} `json:"responseStatus"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("decoding %.200q: %w", line, err)
		}
		if event.Stage != "ResponseComplete" {
			continue
		}
		key := AuditKey{event.User.Username, event.Verb, event.ObjectRef.Resource, event.ResponseStatus.Code}
		if event.ObjectRef.Subresource != "" {
			key.Resource += "/" + event.ObjectRef.Subresource
		}
		requests[key]++
	}
	counts := make([]AuditCount, 0, len(requests))
	for key, n := range requests {
		counts = append(counts, AuditCount{key, n})
	}
	slices.SortFunc(counts, func(a, b AuditCount) int {
		if c := strings.Compare(a.User+"\x00"+a.Verb+"\x00"+a.Resource, b.User+"\x00"+b.Verb+"\x00"+b.Resource); c != 0 {
			return c
		}
		return a.Code - b.Code
	})
	return counts, nil
}
