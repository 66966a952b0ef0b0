// SPDX-License-Identifier: Apache-2.0

// Command pretend is the driver's programs for MPS to the tests, by the name it is called by.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	switch {
	case filepath.Base(os.Args[0]) == "nvidia-smi":
		os.Exit(pretendSMI())
	case len(os.Args) > 1 && os.Args[1] == "-f":
		os.Exit(pretendDaemon())
	default:
		os.Exit(pretendControl())
	}
}

// pretendSMI writes down what it was called with; it fails where a file says so.
func pretendSMI() int {
	note(os.Getenv("HOME"), "smi", strings.Join(os.Args[1:], " "))
	if _, err := os.Stat(filepath.Join(os.Getenv("HOME"), "smi-fails")); err == nil {
		fmt.Println("Insufficient Permissions")
		return 4
	}
	return 0
}

// pretendControl sends commands to the daemon, and prints its answers.
func pretendControl() int {
	conn, err := net.Dial("unix", filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control"))
	if err != nil {
		fmt.Println("Cannot find MPS control daemon process")
		return 1
	}
	defer conn.Close()
	_, _ = io.Copy(conn, os.Stdin)
	_ = conn.(*net.UnixConn).CloseWrite()
	_, _ = io.Copy(os.Stdout, conn)
	return 0
}

// pretendDaemon is a control daemon that does what files in its folder say.
func pretendDaemon() int {
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	folder := filepath.Dir(pipe)
	does := func(what string) bool {
		_, err := os.Stat(filepath.Join(folder, what))
		return err == nil
	}
	note(folder, "starts", os.Getenv("CUDA_VISIBLE_DEVICES")+" "+os.Getenv("CUDA_MPS_LOG_DIRECTORY"))
	if does("ends-at-once") {
		fmt.Println("no CUDA-capable device is detected")
		return 3
	}
	socket := filepath.Join(pipe, "control")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	note(folder, "pids", strconv.Itoa(os.Getpid()))
	percent := "100.0"
	for {
		conn, err := listener.Accept()
		if err != nil {
			return 1
		}
		for does("hangs") {
			time.Sleep(5 * time.Millisecond)
		}
		if does("deaf-to-quit") {
			note(folder, "deaf", "")
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			note(folder, "commands", lines.Text())
			words := strings.Fields(lines.Text())
			switch words[0] {
			case "get_default_active_thread_percentage":
				fmt.Fprintln(conn, percent)
			case "set_default_active_thread_percentage":
				if !does("takes-no-limits") {
					percent = words[1] + ".0"
				}
				fmt.Fprintln(conn, percent)
			case "get_server_list":
				servers, _ := os.ReadFile(filepath.Join(folder, "servers"))
				_, _ = conn.Write(servers)
			case "quit":
				if !does("deaf-to-quit") {
					_ = os.Remove(socket)
					return 0
				}
			}
		}
		_ = conn.Close()
	}
}

// note adds a line to a file.
func note(folder, file, line string) {
	f, err := os.OpenFile(filepath.Join(folder, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
