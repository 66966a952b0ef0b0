// SPDX-License-Identifier: Apache-2.0

// Command kubernetes-1.37 is all of Kubernetes that the end-to-end test runs, in one file: it
// is the program whose name it is called by; kubelet-1.37 is a kubelet. Linked one by one, the five would take three
// times the room and most of a minute more.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name, _, _ := strings.Cut(filepath.Base(os.Args[0]), "-1.")
	if name == "kubectl" {
		logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
		util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
		return
	}
	commands := map[string]func() *cobra.Command{
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kube-controller-manager": controllers.NewControllerManagerCommand,
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%q is none of the programs in here; call it kubelet, kube-apiserver, kube-scheduler, kube-controller-manager or kubectl\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
