// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// The formats, in the words in which Prometheus asks for them.
const (
	acceptText     = "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
	acceptOpen     = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3"
	acceptProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;q=0.3"
)

// kind is a kind of client.
type kind struct {
	name, accept, coding string
	// fresh is a client that connects anew for each page.
	fresh bool
}

// kinds are ten clients: every format and every coding, kept and new connections, one of the device plugin's page and one of what people look at.
func kinds() []kind {
	return []kind{
		{"text", acceptText, "identity", false},
		{"text gzip", acceptText, "gzip", false},
		{"text zstd, new connections", acceptText, "zstd", true},
		{"openmetrics gzip", acceptOpen, "gzip", false},
		{"openmetrics, new connections", acceptOpen, "identity", true},
		{"protobuf gzip", acceptProtobuf, "gzip", false},
		{"protobuf zstd", acceptProtobuf, "zstd", false},
		{"protobuf, new connections", acceptProtobuf, "identity", true},
		{pluginClient, acceptText, "gzip", false},
		{peopleClient, "text/html", "identity", false},
	}
}

const (
	pluginClient = "device plugin's page"
	peopleClient = "node page, probes and API"
)

// client is one that scrapes until the soak ends.
type client struct {
	kind

	book   *book
	tally  *tally
	memory memory
	http   *http.Client
	random *rand.Rand
	// of is whose page it is.
	of  *program
	url string
}

// scrapeEvery is about how long a client waits between two pages.
const scrapeEvery = time.Second

func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(c.random.Int64N(int64(2 * scrapeEvery)))):
		}
		c.look(ctx)
	}
}

// errNotYet is an answer that there is no page yet.
var errNotYet = errors.New("not yet")

// look is one request with all that is held against its answer.
func (c *client) look(ctx context.Context) {
	_, before, _ := c.of.now()
	path := "/metrics"
	if c.name == peopleClient {
		path = []string{"/", "/livez", "/readyz", "/health", "/api/v1/health"}[c.random.IntN(5)]
	}
	began := time.Now()
	header, body, err := c.get(ctx, path)
	took := time.Since(began)
	_, after, _ := c.of.now()
	switch {
	case errors.Is(err, errNotYet):
		c.book.refused(c.tally)
		return
	case err != nil:
		if ctx.Err() == nil {
			c.book.failed(c.tally)
		}
		return
	}
	if before != after {
		after = 0
	}
	if err := c.check(path, header, body, after); err != nil {
		c.book.violation("%s, life %d, %s: %v", c.name, after, path, err)
		return
	}
	c.book.served(c.tally, len(body), took)
}

// get fetches. An error is a connection that failed, as it does when a program is killed; what comes whole and wrong is a violation.
func (c *client) get(ctx context.Context, path string) (http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, http.NoBody)
	if err != nil {
		return nil, nil, err
	}
	r.Close = c.fresh
	r.Header.Set("Accept", c.accept)
	r.Header.Set("Accept-Encoding", c.coding)
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, nil, err
	case resp.StatusCode == http.StatusServiceUnavailable && len(body) > 0:
		return nil, nil, errNotYet
	case resp.StatusCode != http.StatusOK:
		c.book.violation("%s, %s: %s: %.200s", c.name, path, resp.Status, body)
	}
	return resp.Header, body, nil
}

// check holds an answer against what was asked for and against the laws.
func (c *client) check(path string, header http.Header, body []byte, life int) error {
	if length := header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(body)) {
		return fmt.Errorf("Content-Length %s, %d bytes came", length, len(body))
	}
	if c.name == peopleClient {
		return people(path, body)
	}
	plain, err := decode(header.Get("Content-Encoding"), c.coding, body)
	if err != nil {
		return err
	}
	contentType := header.Get("Content-Type")
	if asked, _, _ := strings.Cut(c.accept, ";"); !strings.HasPrefix(contentType, asked) {
		return fmt.Errorf("asked for %s, got %s", asked, contentType)
	}
	p, err := parse(plain, contentType)
	if err != nil {
		return fmt.Errorf("Prometheus refuses the page: %w", err)
	}
	if c.name == pluginClient {
		return c.memory.falls(p, life)
	}
	return errors.Join(p.laws(), c.memory.falls(p, life))
}

func people(path string, body []byte) error {
	switch {
	case path == "/" && !bytes.Contains(body, []byte("</html>")):
		return errors.New("the node page is not whole")
	case path == "/api/v1/health" && !json.Valid(body):
		return errors.New("no JSON")
	case len(body) == 0:
		return errors.New("nothing came")
	}
	return nil
}

// decode undoes a content coding, which must be the one that was asked for.
func decode(coding, asked string, body []byte) ([]byte, error) {
	if coding != asked && (coding != "" || asked != "identity") {
		return nil, fmt.Errorf("asked for coding %s, got %q", asked, coding)
	}
	switch coding {
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(r)
	case "zstd":
		r, err := zstd.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return io.ReadAll(r)
	}
	return body, nil
}
