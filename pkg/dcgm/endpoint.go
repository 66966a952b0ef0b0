// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DefaultPort is the TCP port of a host engine.
const DefaultPort = 5555

// Endpoint is where a host engine listens. The zero Endpoint is an engine of our own,
// embedded in this process.
//
// Over TCP each large reply of a host engine takes 40 ms, because it waits for an
// acknowledgement; over a unix socket it takes none. Prefer the socket where there is one.
type Endpoint struct {
	// address is a socket's path or a host with its port, IPv6 in brackets.
	address string
	unix    bool
}

// ParseEndpoint reads where a host engine listens: "unix:///path" or "/path" for a unix
// socket; "tcp://host:port", "host:port", "host", "[v6]:port", "[v6]" or a bare IPv6
// address for TCP. The port is DefaultPort where none is given. An error says how to
// write it.
func ParseEndpoint(text string) (Endpoint, error) {
	scheme, rest, found := strings.Cut(strings.TrimSpace(text), "://")
	if !found {
		scheme, rest = "tcp", scheme
		if strings.HasPrefix(rest, "/") {
			scheme = "unix"
		}
	}
	var e Endpoint
	var err error
	switch scheme {
	case "unix":
		e, err = parseSocket(rest)
	case "tcp":
		e, err = parseHost(rest)
	default:
		err = fmt.Errorf(`%q is neither "unix" nor "tcp"`, scheme)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf(`host engine %q: %w; write unix:///path/of/socket, host:port or [v6]:port`, text, err)
	}
	return e, nil
}

// longestSocket is what fits into a sockaddr_un.
const longestSocket = 107

func parseSocket(path string) (Endpoint, error) {
	switch {
	case !strings.HasPrefix(path, "/") || path == "/":
		return Endpoint{}, fmt.Errorf("the path %q of a socket must begin with / (three slashes after unix:)", path)
	case len(path) > longestSocket:
		return Endpoint{}, fmt.Errorf("the path of a socket has at most %d bytes, this one has %d", longestSocket, len(path))
	case strings.ContainsRune(path, 0):
		return Endpoint{}, fmt.Errorf("the path of the socket has a zero byte")
	}
	return Endpoint{address: path, unix: true}, nil
}

func parseHost(text string) (Endpoint, error) {
	host, port := text, strconv.Itoa(DefaultPort)
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && bracketed(text) {
		host = strings.Trim(text, "[]")
	} else if strings.Contains(text, ":") {
		var err error
		if host, port, err = net.SplitHostPort(text); err != nil {
			return Endpoint{}, fmt.Errorf("%q is no host and port", text)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return Endpoint{}, fmt.Errorf("the port %q is no number from 1 to 65535", port)
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return Endpoint{}, fmt.Errorf("%q is no IPv6 address", host)
		}
	} else if bad := strings.IndexFunc(host, notInHost); host == "" || bad >= 0 {
		return Endpoint{}, fmt.Errorf("%q is no name of a host", host)
	}
	return Endpoint{address: net.JoinHostPort(host, port)}, nil
}

// bracketed reports whether text has both brackets or neither.
func bracketed(text string) bool {
	return strings.HasPrefix(text, "[") == strings.HasSuffix(text, "]")
}

func notInHost(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._", r))
}

// Embedded reports whether e is the engine in this process.
func (e Endpoint) Embedded() bool { return e.address == "" }

// String is the endpoint as ParseEndpoint reads it, "embedded" for the engine in this process.
func (e Endpoint) String() string {
	switch {
	case e.Embedded():
		return "embedded"
	case e.unix:
		return "unix://" + e.address
	default:
		return "tcp://" + e.address
	}
}
