// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
)

// logWriter appends to the log in dir. It is not safe for concurrent use. Its fields tell of what the disk surely
// has; whatever else is in the file after a failure is cut off before the next line is written.
type logWriter struct {
	disk disk
	dir  string
	// file is the segment at path, nil where it must be opened again. Path is empty before the first segment.
	file diskFile
	path string
	size int64
	// seq, link and boot are of the last line, started when the segment was begun.
	seq     uint64
	link    link
	boot    string
	started Instant
	buf     []byte
}

// write appends records and waits until the disk has them. It returns how many of them it surely has, which is
// all of them unless there is an error. A Carry begins a segment, and so does the first record of all.
func (w *logWriter) write(records []Record) (int, error) {
	done := 0
	for done < len(records) {
		if w.path == "" || records[done].Body.Kind() == KindCarry {
			if err := w.begin(records[done]); err != nil {
				return done, err
			}
			done++
			continue
		}
		end := done + 1
		for end < len(records) && records[end].Body.Kind() != KindCarry {
			end++
		}
		if err := w.append(records[done:end]); err != nil {
			// What is in the page cache after a failed fsync may be called clean and never be written: so
			// everything since the last good one is written again, to a file that is opened anew.
			w.takeBack()
			return done, err
		}
		done = end
	}
	return done, nil
}

// append writes lines to the segment there is.
func (w *logWriter) append(records []Record) error {
	if err := w.reopen(); err != nil {
		return err
	}
	lines, last, boot, err := appendLines(w.buf[:0], records, w.link, w.boot)
	if err != nil {
		return err
	}
	w.buf = lines[:0]
	if _, err := w.file.Write(lines); err != nil {
		return fmt.Errorf("append to %s: %w", w.path, err)
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("wait for the disk to have %s: %w", w.path, err)
	}
	w.size += int64(len(lines))
	w.seq, w.link, w.boot = records[len(records)-1].Seq, last, boot
	return nil
}

// appendLines appends a line for each record, and returns the link and the boot of the last.
func appendLines(out []byte, records []Record, prev link, boot string) ([]byte, link, string, error) {
	for _, r := range records {
		start := len(out)
		var err error
		if out, err = appendLine(out, r, prev, boot); err != nil {
			return out, prev, boot, err
		}
		prev, boot = linkOf(out[start:]), r.At.BootID
	}
	return out, prev, boot, nil
}

// takeBack cuts what a write that failed may have left, so that nobody reads it. Where that fails too, it is cut before the next
// line is written, and readers know from the totals that it does not count.
func (w *logWriter) takeBack() {
	w.drop()
	// What is wrong with the disk is told already.
	_ = w.reopen()
	w.drop()
}

// reopen opens the segment where it is not, and cuts what may be behind its last good line.
func (w *logWriter) reopen() error {
	if w.file != nil {
		return nil
	}
	file, err := w.disk.Append(w.path)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	if err := file.Truncate(w.size); err != nil {
		return errors.Join(fmt.Errorf("cut %s at its last good line: %w", w.path, err), file.Close())
	}
	w.file = file
	return nil
}

// begin makes the segment whose first line is r's. Nobody sees it before that line is on the disk.
func (w *logWriter) begin(r Record) error {
	line, last, boot, err := appendLines(nil, []Record{r}, w.link, w.boot)
	if err != nil {
		return err
	}
	path := filepath.Join(w.dir, segmentName(r.Seq))
	if err := w.replace(path, line); err != nil {
		return fmt.Errorf("begin a segment of the log: %w", err)
	}
	w.drop()
	w.path, w.size, w.started = path, int64(len(line)), r.At
	w.seq, w.link, w.boot = r.Seq, last, boot
	return nil
}

// replace makes a file, or replaces one, and waits until the disk has it: all of it, or nothing.
func (w *logWriter) replace(path string, data []byte) error {
	fresh := path + ".new"
	err := w.whole(fresh, data)
	if err == nil {
		err = w.disk.Rename(fresh, path)
	}
	if err != nil {
		_ = w.disk.Remove(fresh)
		return err
	}
	if err := w.disk.SyncDir(w.dir); err != nil {
		return fmt.Errorf("wait for the disk to have %s: %w", path, err)
	}
	return nil
}

// sync makes sure that the disk has the segment up to its last good line, and nothing behind.
func (w *logWriter) sync() error {
	if err := w.reopen(); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		w.drop()
		return fmt.Errorf("wait for the disk to have %s: %w", w.path, err)
	}
	return nil
}

// whole makes a file and waits until the disk has it.
func (w *logWriter) whole(path string, data []byte) error {
	out, err := w.disk.Create(path)
	if err != nil {
		return err
	}
	if _, err = out.Write(data); err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// drop closes the segment; it is opened again when it is needed.
func (w *logWriter) drop() {
	if w.file != nil {
		// All that counts was synced.
		_ = w.file.Close()
		w.file = nil
	}
}
