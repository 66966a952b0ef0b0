// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	// sealVersion is the version of what encloses the payload.
	sealVersion = 1
	// sealLine bounds the first line.
	sealLine = 128
)

var (
	errCorrupt = errors.New("it is not as it was written")
	errNewer   = errors.New("a newer version wrote it")
)

// seal encloses a payload in one line that tells whether all of it is there and as it was:
// "<word> 1 <CRC-32C> <length>", with the word that says what kind of file it is.
func seal(word string, payload []byte) []byte {
	out := fmt.Appendf(nil, "%s %d %08x %d\n", word, sealVersion, sum(payload), len(payload))
	return append(append(out, payload...), '\n')
}

// unseal is the payload of what seal made; errNewer where a later seal did, errCorrupt otherwise.
func unseal(word string, data []byte) ([]byte, error) {
	line, rest, found := bytes.Cut(data, []byte("\n"))
	if !found || len(line) > sealLine {
		return nil, fmt.Errorf("%w: its first line is not one of ours", errCorrupt)
	}
	var first string
	var version, length int
	var crc uint32
	if n, _ := fmt.Sscanf(string(line), "%s %d %x %d", &first, &version, &crc, &length); n >= 2 && first == word && version > sealVersion {
		return nil, fmt.Errorf("%w: version %d, and this program knows %d", errNewer, version, sealVersion)
	}
	// Written again it must be the same line: there are many ways to write a number.
	if string(line) != fmt.Sprintf("%s %d %08x %d", word, sealVersion, crc, length) {
		return nil, fmt.Errorf("%w: its first line is not one of ours", errCorrupt)
	}
	if length < 0 || len(rest) != length+1 || rest[length] != '\n' {
		return nil, fmt.Errorf("%w: %d bytes where %d were written", errCorrupt, len(rest), length+1)
	}
	payload := rest[:length]
	if got := sum(payload); got != crc {
		return nil, fmt.Errorf("%w: its sum is %08x and should be %08x", errCorrupt, got, crc)
	}
	return payload, nil
}

func sum(data []byte) uint32 { return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) }
