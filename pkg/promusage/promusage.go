// SPDX-License-Identifier: Apache-2.0

// Package promusage reads consumption from Prometheus, Thanos or Mimir, as the last reading of each of gpumeter's
// registers at or before a moment, whoever scraped it how often.
package promusage
