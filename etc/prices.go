// SPDX-License-Identifier: Apache-2.0

package etc

import _ "embed"

//go:embed prices.example.yaml
var examplePrices string

// ExamplePrices is the text of prices.example.yaml, a price book to begin with, the caller's own copy.
func ExamplePrices() []byte { return []byte(examplePrices) }
