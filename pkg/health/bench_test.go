// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"testing"
	"time"
)

// A tick of a node on which nothing happens, or everything is as bad as it was.
func BenchmarkFold(b *testing.B) {
	for _, node := range []struct {
		name        string
		parts       int
		bad, linked bool
	}{{"8 GPUs", 0, false, false}, {"8 GPUs with links", 0, false, true}, {"8 GPUs of 7 MIG devices", 7, false, false}, {"8 bad GPUs of 7 MIG devices", 7, true, false}} {
		b.Run(node.name, func(b *testing.B) {
			m := aNode(b, 8, Config{})
			for i, c := range m.cards {
				if node.parts > 0 {
					c.cut([]int{0, 1, 2, 3, 4, 5, 6}...)
				}
				if node.linked {
					c.links = make([]int64, 18)
				}
				for _, f := range Fields() {
					c.set(f, 0)
				}
				if node.bad {
					c.set(fieldRemapFailed, 1)
					m.xidOf(c, 94, 1+i%7, 0)
				}
			}
			m.tick()
			e := m.evidence()
			b.ReportAllocs()
			for b.Loop() {
				// A second later, with new values of the same content.
				e.Time = e.Time.Add(time.Second)
				for i := range e.Reading.Samples {
					e.Reading.Samples[i].Time = e.Time
				}
				m.state = m.rules.Fold(m.state, e)
			}
			if got := fmt.Sprint(m.verdict("GPU-h").Status); (got == "unhealthy") != node.bad {
				b.Fatal(got)
			}
		})
	}
}
