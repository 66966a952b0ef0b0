// SPDX-License-Identifier: Apache-2.0

// Package healthv1 is what the health stream says on the wire, generated from health.proto.
package healthv1
