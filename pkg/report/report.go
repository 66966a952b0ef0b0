// SPDX-License-Identifier: Apache-2.0

// Package report shows a bill to people and to programs: as a table, CSV, JSON, HTML and FOCUS.
package report
