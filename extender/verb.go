package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// badRequest is a request that cannot be answered as it is.
type badRequest struct{ why string }

func (b badRequest) Error() string { return b.why }

// verb makes the handler of one verb: it decodes the request, bounds its size and
// time, and encodes the answer. A fault is part of the answer where its type has a
// field for it, since kube-scheduler does not read the body of any other status
// than 200. The result that answer gives is its label in metrics.
func verb[In, Out any](h *handler, name string, limit time.Duration, answer func(context.Context, *In) (Out, string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		flying := h.metrics.flying.WithLabelValues(name)
		flying.Inc()
		defer flying.Dec()
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		result := respond(ctx, h, name, w, r, answer)
		h.metrics.duration.WithLabelValues(name, result).Observe(time.Since(started).Seconds())
	}
}

func respond[In, Out any](ctx context.Context, h *handler, name string, w http.ResponseWriter, r *http.Request, answer func(context.Context, *In) (Out, string, error)) string {
	in := new(In)
	if status, err := decode(w, r, in); err != nil {
		h.Log.Warn("refused a request", "verb", name, "status", status, "error", err)
		text(w, status, err.Error())
		return "bad_request"
	}
	out, result, err := answer(ctx, in)
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		h.Log.Warn("refused a request", "verb", name, "error", err)
		text(w, http.StatusBadRequest, bad.why)
		return "bad_request"
	case err != nil:
		h.Log.Warn("a call failed", "verb", name, "error", err)
		text(w, http.StatusInternalServerError, err.Error())
		return "error"
	}
	body, err := json.Marshal(out)
	if err != nil {
		h.Log.Error("encoding an answer failed", "verb", name, "error", err)
		text(w, http.StatusInternalServerError, "encoding the answer failed")
		return "error"
	}
	// Without the length the answer would be chunked, and kube-scheduler, which
	// does not read to the end, could not use its connection again.
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
	return result
}

// decode reads exactly one JSON value. Fields that are not known are let pass:
// a newer kube-scheduler may send more.
func decode(w http.ResponseWriter, r *http.Request, in any) (int, error) {
	if r.ContentLength > maxBody {
		return http.StatusRequestEntityTooLarge, fmt.Errorf("the body has %d bytes; at most %d are read", r.ContentLength, maxBody)
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	err := decoder.Decode(in)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", maxBody)
	case errors.Is(err, io.EOF):
		return http.StatusBadRequest, errors.New("the body is empty")
	case err != nil:
		return http.StatusBadRequest, fmt.Errorf("the body is not the JSON of this verb: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return http.StatusBadRequest, errors.New("the body has something after its JSON value")
	}
	return 0, nil
}

func text(w http.ResponseWriter, status int, message string) {
	var body bytes.Buffer
	body.WriteString(message)
	body.WriteByte('\n')
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}
