// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// coding is a content coding of HTTP.
type coding uint8

const (
	codingIdentity coding = iota
	codingGzip
	codingZstd

	codingCount
)

// press turns content into bytes. It remembers how large each form was, since the
// next page is nearly as large, and keeps its compressors. The zero press is ready.
type press struct {
	sizes [formatCount][codingCount]atomic.Int64
	gzips sync.Pool
	zstd  sync.Once
	zstds *zstd.Encoder
}

// buffer is empty and has room for a form somewhat larger than the last one.
func (p *press) buffer(f Format, c coding) []byte {
	return make([]byte, 0, roomy(int(p.sizes[f][c].Load())))
}

func (p *press) render(page *content, f Format) []byte {
	b := p.buffer(f, codingIdentity)
	switch f {
	case FormatOpenMetrics:
		b = page.appendOpenMetrics(b)
	case FormatProtobuf:
		b = page.appendProtobuf(b)
	default:
		b = page.appendText(b)
	}
	p.sizes[f][codingIdentity].Store(int64(len(b)))
	return b
}

func (p *press) compress(page []byte, f Format, c coding) []byte {
	b := p.buffer(f, c)
	if c == codingZstd {
		b = p.zstdEncoder().EncodeAll(page, b)
	} else {
		b = p.gzip(page, b)
	}
	p.sizes[f][c].Store(int64(len(b)))
	return b
}

// gzip appends page in gzip to b. Writes into memory do not fail.
func (p *press) gzip(page, b []byte) []byte {
	out := bytes.NewBuffer(b)
	w, ok := p.gzips.Get().(*gzip.Writer)
	if ok {
		w.Reset(out)
	} else {
		w, _ = gzip.NewWriterLevel(out, gzip.BestSpeed)
	}
	_, _ = w.Write(page)
	_ = w.Close()
	// The writer would keep the page's bytes alive while it waits in the pool.
	w.Reset(nil)
	p.gzips.Put(w)
	return out.Bytes()
}

// zstdEncoder is made when the first client asks, because it is large and few do.
// Its options are fixed and valid.
func (p *press) zstdEncoder() *zstd.Encoder {
	p.zstd.Do(func() {
		p.zstds, _ = zstd.NewWriter(nil,
			zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true))
	})
	return p.zstds
}
