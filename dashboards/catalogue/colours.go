// SPDX-License-Identifier: Apache-2.0

package catalogue

// The same thing has the same colour on every page. Green and red are for well and broken only, save that free capacity is
// light green: it can be had.
const (
	blue   = "#3274D9"
	green  = "#56A64B"
	mint   = "#A3D9A5"
	yellow = "#F2CC0C"
	orange = "#FF780A"
	red    = "#E02F44"
	darker = "#8F1D2C"
	purple = "#A352CC"
	grey   = "#8E8E8E"
	pale   = "#8AB8FF"
	teal   = "#1F9E89"
	// lavender is in no palette of Grafana, so that no namespace has it beside unrequested seats.
	lavender = "#C7CFE2"
	text     = "text"
)

type named struct{ name, colour string }

// states are what a part of a GPU can be, in the order in which they are stacked.
func states() []named {
	return []named{
		{"held", blue},
		{"unrequested", lavender},
		{"free", mint},
		{"stranded", purple},
		{"unhealthy", red},
		{"unobserved", grey},
		{"unattributed", orange},
	}
}

// reasons are the states in which nobody is charged.
func reasons() []named { return states()[1:] }

// classes are what faults ask for, the milder first.
func classes() []named {
	return []named{
		{"app", pale},
		{"info", "#B0BEC5"},
		{"watch", yellow},
		{"contained", "#F2A60C"},
		{"reset", orange},
		{"node", red},
		{"hardware", darker},
	}
}

// modes are how GPUs are given away.
func modes() []named {
	return []named{{"exclusive", blue}, {"shared", teal}, {"mig", purple}, {"mig-shared", "#CA95E5"}}
}

type word struct{ value, text, colour string }

// verdicts are the values that the dashboards give the statuses of a device.
func verdicts() []word {
	return []word{{"0", "healthy", green}, {"1", "unknown", grey}, {"2", "unhealthy", red}}
}

func yesNo() []word { return []word{{"1", "yes", green}, {"0", "no", red}} }
