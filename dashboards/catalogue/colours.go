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
	// lavender is that of unrequested seats, lighter than what somebody holds.
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

// modes are how GPUs are given away, in no colour of a state.
func modes() []named {
	return []named{{"exclusive", "#1F4E8C"}, {"shared", teal}, {"mig", "#B08A1E"}, {"mig-shared", "#E0CB8A"}}
}

// hue is the colour of what has a name that nobody knows beforehand, as namespaces do: all names that match, or all others.
type hue struct{ matching, colour string }

// hues are none of a state's, nor is any shade that Grafana makes of them. Names fall to one by their last letter, so that a name has
// the same hue on every page; within a panel Grafana gives each its own shade. Its palettes would give namespaces the red of
// what is broken.
func hues() []hue {
	return []hue{
		{"", "#2E9CC4"},
		{"/[bfgmn159]$/i", "#2BB5A0"},
		{"/[chilty26]$/i", "#C9A227"},
		{"/[djpqrsw37]$/i", "#D46A9F"},
	}
}

type word struct{ value, text, colour string }

// verdicts are the values that the dashboards give the statuses of a device.
func verdicts() []word {
	return []word{{"0", "healthy", green}, {"1", "unknown", grey}, {"2", "unhealthy", red}}
}

func yesNo() []word { return []word{{"1", "yes", green}, {"0", "no", red}} }
