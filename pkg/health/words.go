// SPDX-License-Identifier: Apache-2.0

package health

import "fmt"

// MarshalText is the class as a word, for files that people read. What is not a class is an error.
func (c Class) MarshalText() ([]byte, error) {
	if c == 0 || c > ClassHardware {
		return nil, fmt.Errorf("class %d has no word", uint8(c))
	}
	return []byte(c.String()), nil
}

// UnmarshalText is ParseClass.
func (c *Class) UnmarshalText(text []byte) error {
	parsed, err := ParseClass(string(text))
	if err != nil {
		return err
	}
	*c = parsed
	return nil
}

// MarshalText is the status as a word.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseStatus.
func (s *Status) UnmarshalText(text []byte) error {
	parsed, err := ParseStatus(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
