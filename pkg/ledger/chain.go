// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A line of the log is
//
//	<CRC-32C, 8 hex> <link, 32 hex> <sequence> <kind> <boot ms> <wall ms> <body>\n
//
// The sum is over all that follows it and its space, without the newline. The link is that of the line before,
// newline and all. The body is a JSON object, or "-" where there is nothing to say.

// link is the first half of the SHA-256 of a line: what the next line repeats, so that no line can be changed,
// taken out or put in unseen. The zero link is before the first line of a ledger.
type link [16]byte

// linkOf is the link of a whole line, its newline included, so that sha256sum says the same.
func linkOf(line []byte) link {
	whole := sha256.Sum256(line)
	return link(whole[:len(link{})])
}

func (l link) String() string { return hex.EncodeToString(l[:]) }

const (
	lineSumLen  = 2 * crc32.Size
	lineLinkLen = 2 * len(link{})
	// logVersion is the version of the lines; it stands in each Carry.
	logVersion = 1
	// maxLine bounds a line; a Carry of ten thousand pods is a few MiB.
	maxLine = 32 << 20
)

var (
	errLine  = errors.New("it is no line of the log")
	errBoots = errors.New("only a carry or a begin can tell of another boot")
)

// carryBody is how a Carry is written: with what every later line of its segment takes for granted.
type carryBody struct {
	Version int             `json:"v"`
	BootID  string          `json:"boot_id"`
	State   json.RawMessage `json:"state"`
}

// appendLine appends r's line, with prev as the link of the line before. BootID is the boot that the lines
// before are of: it is written in a carry and a begin only, so every other record must be of it.
func appendLine(out []byte, r Record, prev link, bootID string) ([]byte, error) {
	kind := r.Body.Kind()
	if kind != KindCarry && kind != KindBegin && r.At.BootID != bootID {
		return out, fmt.Errorf("write down record %d (%s) of boot %q after one of %q: %w", r.Seq, kind, r.At.BootID, bootID, errBoots)
	}
	start := len(out)
	out = append(out, make([]byte, lineSumLen)...)
	out = append(out, ' ')
	out = hex.AppendEncode(out, prev[:])
	out = append(out, ' ')
	out = strconv.AppendUint(out, r.Seq, 10)
	out = append(append(append(out, ' '), kind...), ' ')
	out = strconv.AppendInt(out, r.At.Boot, 10)
	out = append(out, ' ')
	out = strconv.AppendInt(out, r.At.Wall, 10)
	out = append(out, ' ')
	out, err := appendBody(out, r)
	if err != nil {
		return out[:start], fmt.Errorf("write down record %d (%s): %w", r.Seq, kind, err)
	}
	crc := lineSum(out[start+lineSumLen+1:])
	copy(out[start:], crc[:])
	return append(out, '\n'), nil
}

// lineSum is the sum of what follows it in a line, in hexadecimal.
func lineSum(rest []byte) (digits [lineSumLen]byte) {
	var crc [crc32.Size]byte
	binary.BigEndian.PutUint32(crc[:], sum(rest))
	hex.Encode(digits[:], crc[:])
	return digits
}

func appendBody(out []byte, r Record) ([]byte, error) {
	var value any = r.Body
	switch body := r.Body.(type) {
	case *Beat:
		return append(out, '-'), nil
	case *Carry:
		value = carryBody{logVersion, r.At.BootID, body.State}
	}
	text, err := json.Marshal(value)
	return append(out, text...), err
}

// parseLine is the record that a line without its newline tells of, and the link to the line before. BootID is as for
// appendLine. The error is errCorrupt where the line is not as it was written, errNewer where a later version wrote it.
func parseLine(line []byte, bootID string) (Record, link, error) {
	var r Record
	var prev link
	fail := func(why error) (Record, link, error) { return Record{}, link{}, why }
	if len(line) < lineSumLen+1+lineLinkLen+1 || line[lineSumLen] != ' ' || line[lineSumLen+1+lineLinkLen] != ' ' {
		return fail(fmt.Errorf("%w: %w", errCorrupt, errLine))
	}
	rest := line[lineSumLen+1:]
	// The digits are compared, not the number: there are two ways to write most digits.
	if want := lineSum(rest); !bytes.Equal(line[:lineSumLen], want[:]) {
		return fail(fmt.Errorf("%w: its sum is %s and it says %.8q", errCorrupt, want, line))
	}
	// What follows is as some program wrote it: what is strange about it is a later version's.
	if _, err := hex.Decode(prev[:], rest[:lineLinkLen]); err != nil {
		return fail(fmt.Errorf("%w: its link: %w", errNewer, err))
	}
	kind, body, err := parseHead(rest[lineLinkLen+1:], &r)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", errNewer, err))
	}
	r.At.BootID = bootID
	if err := parseBody(kind, body, &r); err != nil {
		return fail(fmt.Errorf("%w: record %d (%.20q): %w", errNewer, r.Seq, kind, err))
	}
	return r, prev, nil
}

// parseHead reads "<sequence> <kind> <boot ms> <wall ms> " and returns the kind and what follows.
func parseHead(text []byte, r *Record) (Kind, []byte, error) {
	seq, text, a := bytes.Cut(text, []byte(" "))
	kind, text, b := bytes.Cut(text, []byte(" "))
	boot, text, c := bytes.Cut(text, []byte(" "))
	wall, body, d := bytes.Cut(text, []byte(" "))
	if !a || !b || !c || !d {
		return "", nil, errLine
	}
	var errSeq, errBoot, errWall error
	r.Seq, errSeq = strconv.ParseUint(string(seq), 10, 64)
	r.At.Boot, errBoot = strconv.ParseInt(string(boot), 10, 64)
	r.At.Wall, errWall = strconv.ParseInt(string(wall), 10, 64)
	return Kind(kind), body, errors.Join(errSeq, errBoot, errWall)
}

func parseBody(kind Kind, text []byte, r *Record) error {
	if kind == KindBeat {
		r.Body = &Beat{}
		if string(text) != "-" {
			return fmt.Errorf("a beat that says %.20q", text)
		}
		return nil
	}
	if kind == KindCarry {
		var body carryBody
		if err := json.Unmarshal(text, &body); err != nil {
			return err
		}
		if body.Version != logVersion {
			return fmt.Errorf("version %d of the log, and this program knows %d", body.Version, logVersion)
		}
		r.At.BootID, r.Body = body.BootID, &Carry{State: body.State}
		return nil
	}
	if body, ok := decodePlain(kind, text); ok {
		r.Body = body
		return nil
	}
	body := bodyOf(kind)
	if body == nil {
		return errors.New("this program does not know that kind")
	}
	if err := json.Unmarshal(text, body); err != nil {
		return err
	}
	if begin, ok := body.(*Begin); ok {
		r.At.BootID = begin.BootID
	}
	r.Body = body
	return nil
}

// bodyOf is an empty body of a kind that is written as it is, nil for an unknown one.
func bodyOf(kind Kind) Body {
	switch kind {
	case KindBegin:
		return &Begin{}
	case KindCard:
		return &CardSeen{}
	case KindOpen:
		return &Open{}
	case KindClose:
		return &Close{}
	case KindUse:
		return &Use{}
	case KindGap:
		return &Gap{}
	case KindCorrection:
		return &Correction{}
	case KindFact:
		return &FactSeen{}
	case KindXID:
		return &XIDSeen{}
	case KindPod:
		return &PodSeen{}
	case KindNode:
		return &NodeSeen{}
	case KindCarry, KindBeat:
	}
	return nil
}
