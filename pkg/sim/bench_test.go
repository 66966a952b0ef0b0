// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
)

func BenchmarkRead(b *testing.B) {
	for _, name := range []string{"h100x8-exclusive", "h100x8-timeslice4", "h100x8-mig-timeslice"} {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, name, Options{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n.ReadingAt(time.Duration(i)*time.Second, defaultFields)
			}
		})
	}
}

func BenchmarkNewNode(b *testing.B) {
	for _, name := range Shipped() {
		s, err := LoadShipped(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := NewNode(s, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
