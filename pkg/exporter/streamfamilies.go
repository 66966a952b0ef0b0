// SPDX-License-Identifier: Apache-2.0

package exporter

// Stream is how the health stream fares, which stands beside the snapshot.
type Stream struct {
	// Epoch and Version name the list that is told now; Epoch is empty before the first.
	Epoch   string
	Version uint64
	// Clients are those that listen now.
	Clients int
	// Lists are those that were sent, Dropped the clients that were dropped because they took no message.
	Lists, Dropped uint64
}

// addStream says who hears the verdicts. There is nothing to say where no stream is served.
func (f *ownFamilies) addStream() {
	if f.cfg.Stream == nil {
		return
	}
	s, none := f.cfg.Stream(), f.set()
	f.begin("gpumeter_health_stream_clients", "Clients that hear the health stream now, such as the device plugin.", kindGauge)
	f.count(none, int64(s.Clients))
	f.begin("gpumeter_health_stream_lists_total", "Lists of verdicts that were sent to clients of the health stream.", kindCounter)
	f.count(none, int64(s.Lists))
	f.begin("gpumeter_health_stream_dropped_clients_total", "Clients of the health stream that were dropped because they took no message.", kindCounter)
	f.count(none, int64(s.Dropped))
	f.begin("gpumeter_health_stream_version", "Version of the list of verdicts that is told now; one who acts on it says which version it acts on.", kindGauge)
	if s.Epoch != "" {
		f.count(none, int64(s.Version))
	}
}

// toldList is which list the health stream tells.
type toldList struct {
	Epoch   string `json:"epoch"`
	Version uint64 `json:"version"`
	Clients int    `json:"clients"`
}

// told is the list that is told now, nil where there is none.
func (c *Config) told() *toldList {
	if c.Stream == nil {
		return nil
	}
	s := c.Stream()
	if s.Epoch == "" {
		return nil
	}
	return &toldList{s.Epoch, s.Version, s.Clients}
}
