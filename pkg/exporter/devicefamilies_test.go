// SPDX-License-Identifier: Apache-2.0

package exporter

import (
	"strings"
	"testing"

	"github.com/gpumeter/gpumeter/pkg/gpu"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// bare is d without the labels that a test is not about.
func bare(d gpu.Device) gpu.Device {
	d.Model, d.PCIBusID = "", ""
	return d
}

// onGPU and onInstance are the samples of a device's entity.
func onGPU(d gpu.Device, values ...gpu.Value) gpu.Sample {
	return sampled(gpu.Entity{Kind: gpu.KindGPU, GPU: d.UUID}, values...)
}

func onInstance(d gpu.Device, values ...gpu.Value) gpu.Sample {
	return sampled(gpu.Entity{Kind: gpu.KindGPUInstance, GPU: d.Parent, ID: d.GPUInstance}, values...)
}

const tempOnly = "DCGM_FI_DEV_GPU_TEMP, gauge\n"

func temps(devices []gpu.Device, samples []gpu.Sample) gpu.Reading {
	return gpu.Reading{Fields: []gpu.FieldID{fieldTemp}, Devices: devices, Samples: samples}
}

func TestLabelsAreDCGMExporters(t *testing.T) {
	d := card(4)
	r := temps([]gpu.Device{d}, []gpu.Sample{onGPU(d, gpu.Int(40))})
	s := ticked(r, sharing.Division{Shares: []sharing.Share{whole(d, holder("ns", "p"), sharing.One())}})
	const hardware = `pci_bus_id="00000000:58:00.0",device="nvidia4",modelName="NVIDIA H100 80GB HBM3"`
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"default", Config{}, `{gpu="4",UUID="GPU-4",` + hardware + `,container="main",namespace="ns",pod="p"} 40`},
		{"host name", Config{Hostname: "n"}, `{gpu="4",UUID="GPU-4",` + hardware + `,hostname="n",container="main",namespace="ns",pod="p"} 40`},
		{"old host name", Config{Hostname: "n", HostnameLabel: "Hostname"}, `{gpu="4",UUID="GPU-4",` + hardware + `,Hostname="n",container="main",namespace="ns",pod="p"} 40`},
		{"old names", Config{OldNamespace: true}, `{gpu="4",uuid="GPU-4",` + hardware + `,container_name="main",pod_namespace="ns",pod_name="p"} 40`},
		{"pod UID", Config{PodUID: true}, `{gpu="4",UUID="GPU-4",` + hardware + `,container="main",namespace="ns",pod="p",pod_uid="uid-p"} 40`},
		{"model without blanks", Config{ReplaceBlanksInModelName: true}, `{gpu="4",UUID="GPU-4",` + strings.ReplaceAll(hardware, " ", "-") + `,container="main",namespace="ns",pod="p"} 40`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), tc.cfg), "DCGM_FI_DEV_GPU_TEMP", tc.want)
		})
	}
}

// TestSeriesOfRealPages has series as a dcgm-exporter 4.8.2 rendered them, of an
// exclusive GPU, of a replica with virtual GPUs, and of a free MIG device. Only the
// label of the host name is the one that came with 4.8.3.
func TestSeriesOfRealPages(t *testing.T) {
	d := card(0)
	d.UUID, d.PCIBusID = "GPU-a0000000-1111-2222-3333-444444440000", "00000000:18:00.0"
	m := slice(d, 7, "1g.10gb", 1)
	h := holder("team-1", "train-1")
	rows := rowsOf(t, "DCGM_FI_DEV_FB_USED,gauge\nDCGM_FI_DRIVER_VERSION,label\n")
	values := []gpu.Value{gpu.Text("550.90.07"), gpu.Int(1980)}
	const common = `{gpu="0",UUID="GPU-a0000000-1111-2222-3333-444444440000",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",`
	for _, tc := range []struct {
		name    string
		cfg     Config
		devices []gpu.Device
		sample  gpu.Sample
		shares  []sharing.Share
		want    string
	}{
		{
			"exclusive", Config{}, []gpu.Device{d}, onGPU(d, values...), []sharing.Share{whole(d, h, sharing.One())},
			`hostname="vm",DCGM_FI_DRIVER_VERSION="550.90.07",container="main",namespace="team-1",pod="train-1"} 1980`,
		},
		{
			"virtual GPU", Config{VirtualGPUs: true}, []gpu.Device{d}, onGPU(d, values...), []sharing.Share{seats(d, h, sharing.One(), 4, 1)},
			`hostname="vm",DCGM_FI_DRIVER_VERSION="550.90.07",container="main",namespace="team-1",pod="train-1",vgpu="1"} 1980`,
		},
		{
			"MIG device", Config{}, []gpu.Device{d, m}, onInstance(m, values...), nil,
			`GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",hostname="vm",DCGM_FI_DRIVER_VERSION="550.90.07"} 1980`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Hostname = "vm"
			s := ticked(gpu.Reading{
				Fields: []gpu.FieldID{fieldDriver, fieldFBUsed}, Devices: tc.devices, Samples: []gpu.Sample{tc.sample},
			}, sharing.Division{Shares: tc.shares})
			wantSeries(t, pageOf(t, s, rows, tc.cfg), "DCGM_FI_DEV_FB_USED", common+tc.want)
		})
	}
}

// TestOneHolderOfAll is the law that a pod's labels stand on a series only where
// what is measured is that pod's alone, and that a shared device is one series.
func TestOneHolderOfAll(t *testing.T) {
	d := bare(card(0))
	a, b := holder("ns", "a"), holder("ns", "b")
	one := sharing.One()
	const plain = `{gpu="0",UUID="GPU-0",device="nvidia0"} 40`
	const held = `{gpu="0",UUID="GPU-0",device="nvidia0",container="main",namespace="ns",pod="a"} 40`
	for _, tc := range []struct {
		name   string
		shares []sharing.Share
		want   string
	}{
		{"free", nil, plain},
		{"exclusive", []sharing.Share{whole(d, a, one)}, held},
		{"shared by two", []sharing.Share{seats(d, a, one, 2, 0), seats(d, b, one, 2, 1)}, plain},
		{"one of two seats", []sharing.Share{seats(d, a, one, 2, 0)}, plain},
		{"all seats of one holder", []sharing.Share{seats(d, a, one, 2, 0, 1)}, held},
		{"all seats of one holder, from two resources", []sharing.Share{seats(d, b, one, 3), seats(d, a, one, 3, 0), seats(d, a, one, 3, 1, 2)}, held},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := ticked(temps([]gpu.Device{d}, []gpu.Sample{onGPU(d, gpu.Int(40))}), sharing.Division{Shares: tc.shares})
			wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), Config{}), "DCGM_FI_DEV_GPU_TEMP", tc.want)
		})
	}
}

func TestInstanceWithTwoComputeInstancesIsNobodysAlone(t *testing.T) {
	d := bare(card(0))
	first := slice(d, 1, "1c.3g.40gb", 3)
	first.Profile.ComputeInstanceSlices = 1
	second := first
	second.UUID, second.ComputeInstance = "MIG-0-1-1", 1
	part := sharing.NewFraction(1, 6)
	shares := []sharing.Share{whole(first, holder("ns", "a"), part)}
	for _, tc := range []struct {
		name    string
		devices []gpu.Device
		want    string
	}{
		{"alone", []gpu.Device{d, first}, `{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1",container="main",namespace="ns",pod="a"} 9`},
		{"with a neighbour", []gpu.Device{d, first, second}, `{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"} 9`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := ticked(gpu.Reading{
				Fields: []gpu.FieldID{fieldFBUsed}, Devices: tc.devices, Samples: []gpu.Sample{onInstance(first, gpu.Int(9))},
			}, sharing.Division{Shares: shares})
			page := pageOf(t, s, rowsOf(t, "DCGM_FI_DEV_FB_USED, gauge\n"), Config{})
			wantSeries(t, page, "DCGM_FI_DEV_FB_USED", tc.want)
			// The ledger's label tells the compute instances apart, the series' need not.
			wantSeries(t, page, "gpumeter_allocation_share",
				`{UUID="GPU-0",GPU_I_ID="1",GPU_I_PROFILE="3g.40gb",GPU_CI_ID="0",resource="nvidia.com/mig-1c.3g.40gb",mode="mig",namespace="ns",pod="a",container="main"} 0.16666666666666666`)
		})
	}
}

// TestScopeLaw says where a quantity stands, whatever a source answers elsewhere.
func TestScopeLaw(t *testing.T) {
	d := bare(card(0))
	s1, s2 := slice(d, 1, "3g.40gb", 3), slice(d, 2, "3g.40gb", 3)
	chatty := []gpu.Value{gpu.Text("550"), gpu.Int(300), gpu.Int(5)}
	reading := func(devices []gpu.Device, samples ...gpu.Sample) gpu.Reading {
		return gpu.Reading{Fields: []gpu.FieldID{fieldDriver, fieldPower, fieldFBUsed}, Devices: devices, Samples: samples}
	}
	rows := rowsOf(t, "DCGM_FI_DEV_POWER_USAGE,gauge\nDCGM_FI_DEV_FB_USED,gauge\n")
	onCard, first, second := onGPU(d, chatty...), onInstance(s1, chatty...), onInstance(s2, chatty...)
	const card0, gi1, gi2 = `{gpu="0",UUID="GPU-0",device="nvidia0"`, `,GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"`, `,GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"`

	divided := pageOf(t, ticked(reading([]gpu.Device{d, s1, s2}, onCard, first, second), sharing.Division{}), rows, Config{})
	wantSeries(t, divided, "DCGM_FI_DEV_POWER_USAGE", card0+"} 300")
	wantSeries(t, divided, "DCGM_FI_DEV_FB_USED", card0+gi1+"} 5", card0+gi2+"} 5")

	d.MIGEnabled = true
	undivided := pageOf(t, ticked(reading([]gpu.Device{d}, onCard), sharing.Division{}), rows, Config{})
	wantSeries(t, undivided, "DCGM_FI_DEV_POWER_USAGE", card0+"} 300")
	wantSeries(t, undivided, "DCGM_FI_DEV_FB_USED", card0+"} 5")

	withoutDevices := pageOf(t, ticked(reading([]gpu.Device{d}, onCard, first), sharing.Division{}), rows, Config{})
	wantSeries(t, withoutDevices, "DCGM_FI_DEV_FB_USED", card0+`,GPU_I_ID="1"} 5`)
}

func TestNodeFieldAsMetricStandsOnGPUs(t *testing.T) {
	d := bare(card(0))
	s1 := slice(d, 1, "3g.40gb", 3)
	const fieldCount = 4
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldCount}, Devices: []gpu.Device{d, s1},
		Samples: []gpu.Sample{onGPU(d, gpu.Int(8)), onInstance(s1, gpu.Int(8))},
	}, sharing.Division{})
	field, ok := gpu.FieldByID(fieldCount)
	if !ok || field.Scope != gpu.ScopeNode {
		t.Fatalf("field %d is no longer the node's: %+v", fieldCount, field)
	}
	rows := &Counters{rows: []Counter{{Name: "DEVICES", Field: field, Type: TypeGauge}}}
	wantSeries(t, pageOf(t, s, rows, Config{}), "DEVICES", `{gpu="0",UUID="GPU-0",device="nvidia0"} 8`)
}

func TestLinksSwitchesAndCPUs(t *testing.T) {
	d := card(0)
	scoped := func(name string, id gpu.FieldID, scope gpu.Scope) Counter {
		return Counter{Name: name, Field: gpu.Field{ID: id, Scope: scope}, Type: TypeGauge}
	}
	rows := &Counters{rows: []Counter{
		scoped("LINK", 1, gpu.ScopeLink), scoped("SWITCH", 2, gpu.ScopeSwitch), scoped("CPU", 3, gpu.ScopeCPU), scoped("CORE", 4, gpu.ScopeCPUCore),
		{Name: "VERSION", Field: gpu.Field{ID: 5, Scope: gpu.ScopeNode}, Type: TypeLabel},
	}}
	all := []gpu.Value{gpu.Int(1), gpu.Int(2), gpu.Int(3), gpu.Int(4), gpu.Absent(gpu.ReasonScope)}
	entities := []gpu.Entity{
		{Kind: gpu.KindGPU, GPU: d.UUID},
		{Kind: gpu.KindLink, GPU: d.UUID, ID: 17},
		{Kind: gpu.KindLink, ID: 3, Parent: 2},
		{Kind: gpu.KindSwitch, ID: 2},
		{Kind: gpu.KindCPU, ID: 1},
		{Kind: gpu.KindCPUCore, ID: 71, Parent: 1},
	}
	r := gpu.Reading{Fields: []gpu.FieldID{1, 2, 3, 4, 5}, Devices: []gpu.Device{d}}
	for _, e := range entities {
		r.Samples = append(r.Samples, sampled(e, all...))
	}
	// The version is the node's: asked of a GPU, shown on everything.
	r.Samples[0].Values = append(all[:4:4], gpu.Text("v"))
	s := ticked(r, sharing.Division{Shares: []sharing.Share{whole(d, holder("ns", "p"), sharing.One())}})
	page := pageOf(t, s, rows, Config{Hostname: "n", VirtualGPUs: true})
	wantSeries(t, page, "LINK",
		`{nvlink="17",gpu="0",gpu_uuid="GPU-0",pci_bus_id="00000000:18:00.0",device="nvidia0",model_name="NVIDIA H100 80GB HBM3",hostname="n",VERSION="v",container="main",namespace="ns",pod="p"} 1`,
		`{nvlink="3",nvswitch="nvswitch2",hostname="n",VERSION="v"} 1`)
	wantSeries(t, page, "SWITCH", `{nvswitch="nvswitch2",hostname="n",VERSION="v"} 2`)
	wantSeries(t, page, "CPU", `{cpu="1",hostname="n",VERSION="v"} 3`)
	wantSeries(t, page, "CORE", `{cpucore="71",cpu="1",hostname="n",VERSION="v"} 4`)
}

func TestCopiesForEachSeat(t *testing.T) {
	d, free := bare(card(0)), bare(card(1))
	a, b := holder("ns", "a"), holder("ns", "b")
	one := sharing.One()
	s := ticked(temps([]gpu.Device{d, free}, []gpu.Sample{onGPU(d, gpu.Int(40)), onGPU(free, gpu.Int(30))}),
		sharing.Division{Shares: []sharing.Share{seats(d, a, one, 4, 0, 2), seats(d, b, one, 4, 3)}})
	cfg := Config{VirtualGPUs: true}
	const of0 = `{gpu="0",UUID="GPU-0",device="nvidia0",container="main",namespace="ns",pod=`
	wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), cfg), "DCGM_FI_DEV_GPU_TEMP",
		of0+`"a",vgpu="0"} 40`, of0+`"a",vgpu="2"} 40`, of0+`"b",vgpu="3"} 40`,
		`{gpu="1",UUID="GPU-1",device="nvidia1"} 30`)

	s.Division.Shares = []sharing.Share{whole(d, a, one)}
	wantSeries(t, pageOf(t, s, rowsOf(t, tempOnly), cfg), "DCGM_FI_DEV_GPU_TEMP",
		of0+`"a"} 40`, `{gpu="1",UUID="GPU-1",device="nvidia1"} 30`)
}

// TestCopiesOfOneHolderAreNotDuplicates: two compute instances of one GPU instance
// in one container give equal labels, and one copy.
func TestCopiesOfOneHolderAreNotDuplicates(t *testing.T) {
	d := bare(card(0))
	first := slice(d, 1, "1c.2g.20gb", 2)
	second := first
	second.UUID, second.ComputeInstance = "MIG-0-1-1", 1
	h := holder("ns", "a")
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldFBUsed}, Devices: []gpu.Device{d, first, second}, Samples: []gpu.Sample{onInstance(first, gpu.Int(9))},
	}, sharing.Division{Shares: []sharing.Share{whole(first, h, sharing.NewFraction(1, 8)), whole(second, h, sharing.NewFraction(1, 8))}})
	page := pageOf(t, s, rowsOf(t, "DCGM_FI_DEV_FB_USED,gauge\n"), Config{VirtualGPUs: true})
	wantSeries(t, page, "DCGM_FI_DEV_FB_USED",
		`{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_PROFILE="2g.20gb",GPU_I_ID="1",container="main",namespace="ns",pod="a"} 9`)
	wantSeries(t, page, "gpumeter_dropped_series", `{reason="duplicate"} 0`, `{reason="invalid_labels"} 0`, `{reason="invalid_name"} 0`, `{reason="unknown_device"} 0`)
	wantSeries(t, page, "gpumeter_allocation_share",
		`{UUID="GPU-0",GPU_I_ID="1",GPU_I_PROFILE="2g.20gb",resource="nvidia.com/mig-1c.2g.20gb",mode="mig",namespace="ns",pod="a",container="main"} 0.25`)
}

// TestAbsentIsNotZero: a value that is not there has no series and is counted.
func TestAbsentIsNotZero(t *testing.T) {
	d, e := bare(card(0)), bare(card(1))
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldTemp, fieldPower, fieldDriver}, Devices: []gpu.Device{d, e},
		Samples: []gpu.Sample{
			onGPU(d, gpu.Absent(gpu.ReasonTimeout), gpu.Text("a lot"), gpu.Absent(gpu.ReasonError)),
			onGPU(e, gpu.Absent(gpu.ReasonScope), gpu.Value{}, gpu.Int(550)),
		},
	}, sharing.Division{})
	page := pageOf(t, s, rowsOf(t, "DCGM_FI_DEV_GPU_TEMP,gauge\nDCGM_FI_DEV_POWER_USAGE,gauge\nDCGM_FI_DRIVER_VERSION,label\nDCGM_FI_DEV_FB_USED,gauge\nDCGM_FI_DEV_FB_USED,label\n"), Config{})
	wantSeries(t, page, "DCGM_FI_DEV_GPU_TEMP")
	wantSeries(t, page, "DCGM_FI_DEV_POWER_USAGE")
	if strings.Contains(page, "# TYPE DCGM_FI_DEV_GPU_TEMP") {
		t.Error("a family without series has a type")
	}
	wantSeries(t, page, "gpumeter_absent_values",
		`{field="DCGM_FI_DEV_FB_USED",reason="blank"} 2`, // asked of nobody yet
		`{field="DCGM_FI_DEV_GPU_TEMP",reason="timeout"} 1`,
		`{field="DCGM_FI_DEV_POWER_USAGE",reason="blank"} 1`,
		`{field="DCGM_FI_DEV_POWER_USAGE",reason="type"} 1`,
		`{field="DCGM_FI_DRIVER_VERSION",reason="error"} 1`)
}

// TestLabelsOfTheCardStandOnItsParts: a card's serial number labels its slices too,
// whatever a source answers there.
func TestLabelsOfTheCardStandOnItsParts(t *testing.T) {
	d := bare(card(0))
	m := slice(d, 1, "3g.40gb", 3)
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldSerial, fieldFBUsed}, Devices: []gpu.Device{d, m},
		Samples: []gpu.Sample{onGPU(d, gpu.Text("S1"), gpu.Int(1)), onInstance(m, gpu.Text("of a slice"), gpu.Int(2))},
	}, sharing.Division{})
	page := pageOf(t, s, rowsOf(t, "DCGM_FI_DEV_FB_USED,gauge\nDCGM_FI_DEV_SERIAL,label\n"), Config{})
	wantSeries(t, page, "DCGM_FI_DEV_FB_USED",
		`{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1",DCGM_FI_DEV_SERIAL="S1"} 2`)
}

func TestLabelRowsCannotTakeBuiltInLabels(t *testing.T) {
	d := bare(card(0))
	node := gpu.Field{ID: fieldDriver, Scope: gpu.ScopeNode}
	label := func(name string) Counter { return Counter{Name: name, Field: node, Type: TypeLabel} }
	temp, _ := gpu.FieldByID(fieldTemp)
	rows := &Counters{rows: []Counter{
		label("UUID"), label("pod"), label("GPU_I_ID"), label("vgpu"), label("VERSION"), label("VERSION"), label("hostname"),
		{Name: "TEMP", Field: temp},
	}}
	s := ticked(gpu.Reading{
		Fields: []gpu.FieldID{fieldTemp, fieldDriver}, Devices: []gpu.Device{d},
		Samples: []gpu.Sample{onGPU(d, gpu.Int(40), gpu.Text("spoof"))},
	}, sharing.Division{})
	wantSeries(t, pageOf(t, s, rows, Config{}), "TEMP", `{gpu="0",UUID="GPU-0",device="nvidia0",VERSION="spoof"} 40`)

	// A name that no label can have costs the series it would stand on.
	rows.rows = append(rows.rows, label("__name__"))
	page := pageOf(t, s, rows, Config{})
	wantSeries(t, page, "TEMP")
	if want := `gpumeter_dropped_series{reason="invalid_labels"} 1`; !strings.Contains(page, want) {
		t.Errorf("page lacks %s", want)
	}
}

func TestRowsThatCannotBeFamilies(t *testing.T) {
	d := bare(card(0))
	temp, _ := gpu.FieldByID(fieldTemp)
	rows := &Counters{rows: []Counter{
		{Name: "A", Field: temp}, {Name: "A", Field: temp, Type: TypeCounter},
		{Name: "gpumeter_allocation_share", Field: temp}, {Name: "no name", Field: temp}, {Name: "", Field: temp},
		{Name: "U", Field: temp, Type: TypeUntyped},
	}}
	stranger := onGPU(card(9), gpu.Int(1))
	twice := onGPU(d, gpu.Int(41))
	s := ticked(temps([]gpu.Device{d}, []gpu.Sample{onGPU(d, gpu.Int(40)), twice, stranger}), sharing.Division{})
	e := exporterOf(t, s, rows, Config{})
	page := writtenPage(t, e, FormatText)
	wantSeries(t, page, "A", `{gpu="0",UUID="GPU-0",device="nvidia0"} 40`)
	wantSeries(t, page, "gpumeter_allocation_share")
	wantSeries(t, page, "gpumeter_dropped_series",
		// Sample two of A, of U and of the sample times, and all three of the second A.
		`{reason="duplicate"} 6`, `{reason="invalid_labels"} 0`, `{reason="invalid_name"} 9`, `{reason="unknown_device"} 2`)
	if strings.Count(page, "# TYPE A ") != 1 || !strings.Contains(page, "# TYPE U untyped\n") {
		t.Error("types are wrong")
	}
	if _, err := parsedText(page); err != nil {
		t.Error(err)
	}
	if err := checkOpenMetrics([]byte(writtenPage(t, e, FormatOpenMetrics))); err != nil {
		t.Error(err)
	}
}

// TestAnInstancesQuantityIsTheCardsWithoutInstances: of a card whose instances are not selected,
// or that has none, the card answers for itself.
func TestAnInstancesQuantityIsTheCardsWithoutInstances(t *testing.T) {
	d := bare(card(0))
	d.MIGEnabled = true
	part := slice(d, 1, "3g.40gb", 3)
	onCard, onPart := onGPU(d, gpu.Int(70000)), onInstance(part, gpu.Int(30000))
	const ofCard, ofPart = `{gpu="0",UUID="GPU-0",device="nvidia0"} 70000`, `{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"} 30000`
	for _, tt := range []struct {
		name    string
		devices []gpu.Device
		samples []gpu.Sample
		want    []string
	}{
		{"instances", []gpu.Device{d, part}, []gpu.Sample{onCard, onPart}, []string{ofPart}},
		{"instances not selected", []gpu.Device{d, part}, []gpu.Sample{onCard}, []string{ofCard}},
		{"MIG without instances", []gpu.Device{d}, []gpu.Sample{onCard}, []string{ofCard}},
		{"an instance without devices", []gpu.Device{d}, []gpu.Sample{onCard, onPart}, []string{`{gpu="0",UUID="GPU-0",device="nvidia0",GPU_I_ID="1"} 30000`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := ticked(gpu.Reading{
				Fields: []gpu.FieldID{fieldFBUsed}, Devices: tt.devices, Samples: tt.samples,
				Processes: []gpu.Process{},
			}, sharing.Division{})
			page := pageOf(t, s, rowsOf(t, "DCGM_FI_DEV_FB_USED, gauge\n"), Config{})
			wantSeries(t, page, "DCGM_FI_DEV_FB_USED", tt.want...)
			processes := `{UUID="GPU-0"} 0`
			if len(tt.devices) > 1 {
				processes = `{UUID="GPU-0",GPU_I_ID="1"} 0`
			}
			wantSeries(t, page, "gpumeter_device_processes", processes)
		})
	}
}
