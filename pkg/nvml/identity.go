// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// What a GPU is, in DCGM's numbers.
const (
	fieldDriverVersion     = gpu.FieldDriverVersion
	fieldNVMLVersion       = gpu.FieldID(2)
	fieldGPUCount          = gpu.FieldID(4)
	fieldCUDAVersion       = gpu.FieldID(5)
	fieldBrand             = gpu.FieldID(51)
	fieldNVMLIndex         = gpu.FieldID(52)
	fieldSerial            = gpu.FieldID(53)
	fieldMinor             = gpu.FieldID(55)
	fieldInforomOEM        = gpu.FieldID(56)
	fieldPCIBusID          = gpu.FieldID(57)
	fieldPCICombinedID     = gpu.FieldID(58)
	fieldPCISubsystemID    = gpu.FieldID(59)
	fieldComputeCapability = gpu.FieldID(63)
	fieldComputeMode       = gpu.FieldID(65)
	fieldPersistenceMode   = gpu.FieldID(66)
	fieldVisibleDevices    = gpu.FieldID(68)
	fieldMIGMaxSlices      = gpu.FieldID(69)
	fieldCPUAffinity       = gpu.FieldID(70) // and the three after it
	fieldInforomECC        = gpu.FieldID(80)
	fieldInforomPower      = gpu.FieldID(81)
	fieldInforomImage      = gpu.FieldID(82)
	fieldInforomChecksum   = gpu.FieldID(83)
	fieldInforomValid      = gpu.FieldID(84)
	fieldVBIOSVersion      = gpu.FieldID(85)
	fieldMemoryAffinity    = gpu.FieldID(86) // and the three after it
	fieldGPMSupport        = gpu.FieldID(94)
	fieldFabricStatus      = gpu.FieldID(170)
	fieldFabricCluster     = gpu.FieldID(172)
	fieldFabricClique      = gpu.FieldID(173)
	fieldVirtualMode       = gpu.FieldID(500)
	fieldVGPULicense       = gpu.FieldID(526)
)

// nodeFacts are the same for every GPU.
type nodeFacts struct {
	driver, nvml string
	// cuda is 1000 times the major plus 10 times the minor version, 0 where it is not known.
	cuda, gpus int
}

// value answers a field of the node.
func (n nodeFacts) value(id gpu.FieldID) gpu.Value {
	switch id {
	case fieldDriverVersion:
		return text(n.driver)
	case fieldNVMLVersion:
		return text(n.nvml)
	case fieldGPUCount:
		return gpu.Int(int64(n.gpus))
	case fieldCUDAVersion:
		if n.cuda == 0 {
			return gpu.Absent(gpu.ReasonBlank)
		}
		return gpu.Int(int64(n.cuda))
	default:
		return gpu.Absent(gpu.ReasonNotSupported)
	}
}

// single is a query of one field by one function of the device.
func single[T any](id gpu.FieldID, function string, get func(nvml.Device) (T, nvml.Return), as func(T) gpu.Value) *query {
	return &query{
		fields: []gpu.FieldID{id}, needs: []string{function},
		read: func(p *probe) {
			v, ret := get(p.device)
			give(p, id, v, ret, as)
		},
	}
}

// fixed is a single query whose answer does not change while the GPU is the same.
func fixed[T any](id gpu.FieldID, function string, get func(nvml.Device) (T, nvml.Return), as func(T) gpu.Value) *query {
	q := single(id, function, get, as)
	q.static = true
	return q
}

// identityQueries are about what a GPU is and how it is set up.
func identityQueries() []*query {
	inforom := func(id gpu.FieldID, object nvml.InforomObject) *query {
		return fixed(id, "nvmlDeviceGetInforomVersion", func(d nvml.Device) (string, nvml.Return) {
			return d.GetInforomVersion(object)
		}, text)
	}
	return []*query{
		{
			// What the inventory knows already.
			fields: []gpu.FieldID{
				gpu.FieldName, gpu.FieldUUID, fieldNVMLIndex, fieldMinor, fieldPCIBusID, fieldVisibleDevices,
				gpu.FieldMIGMode, fieldMIGMaxSlices, fieldGPMSupport,
			},
			known: true,
			read:  (*probe).inventory,
		},
		fixed(fieldBrand, "nvmlDeviceGetBrand", nvml.Device.GetBrand, brand),
		fixed(fieldSerial, "nvmlDeviceGetSerial", nvml.Device.GetSerial, text),
		fixed(fieldVBIOSVersion, "nvmlDeviceGetVbiosVersion", nvml.Device.GetVbiosVersion, text),
		inforom(fieldInforomOEM, nvml.INFOROM_OEM),
		inforom(fieldInforomECC, nvml.INFOROM_ECC),
		inforom(fieldInforomPower, nvml.INFOROM_POWER),
		fixed(fieldInforomImage, "nvmlDeviceGetInforomImageVersion", nvml.Device.GetInforomImageVersion, text),
		single(fieldInforomChecksum, "nvmlDeviceGetInforomConfigurationChecksum",
			nvml.Device.GetInforomConfigurationChecksum, number[uint32]),
		{fields: []gpu.FieldID{fieldInforomValid}, needs: []string{"nvmlDeviceValidateInforom"}, read: (*probe).inforomValid},
		{
			fields: []gpu.FieldID{fieldPCICombinedID, fieldPCISubsystemID}, needs: []string{pciInfoFunction},
			static: true, read: (*probe).pciIDs,
		},
		{
			fields: []gpu.FieldID{fieldComputeCapability}, needs: []string{"nvmlDeviceGetCudaComputeCapability"},
			static: true, read: (*probe).computeCapability,
		},
		single(fieldComputeMode, "nvmlDeviceGetComputeMode", nvml.Device.GetComputeMode, computeMode),
		single(fieldPersistenceMode, "nvmlDeviceGetPersistenceMode", nvml.Device.GetPersistenceMode, enabled),
		affinity(fieldCPUAffinity, "nvmlDeviceGetCpuAffinity", func(d nvml.Device) ([]uint, nvml.Return) {
			return d.GetCpuAffinity(affinityBytes)
		}),
		affinity(fieldMemoryAffinity, "nvmlDeviceGetMemoryAffinity", func(d nvml.Device) ([]uint, nvml.Return) {
			return d.GetMemoryAffinity(affinityBytes, nvml.AFFINITY_SCOPE_NODE)
		}),
		single(fieldVirtualMode, "nvmlDeviceGetVirtualizationMode", nvml.Device.GetVirtualizationMode,
			number[nvml.GpuVirtualizationMode]),
		{
			fields: []gpu.FieldID{fieldVGPULicense}, static: true,
			needs: []string{"nvmlDeviceGetGridLicensableFeatures_v4|nvmlDeviceGetGridLicensableFeatures_v3|" +
				"nvmlDeviceGetGridLicensableFeatures_v2|nvmlDeviceGetGridLicensableFeatures"},
			read: (*probe).vgpuLicense,
		},
		{
			fields: []gpu.FieldID{fieldFabricStatus, fieldFabricCluster, fieldFabricClique},
			needs:  []string{"nvmlDeviceGetGpuFabricInfo"}, read: (*probe).fabric,
		},
	}
}

// inventory answers what needs no call of its own.
func (p *probe) inventory() {
	d := &p.card.device
	p.put(gpu.FieldName, text(d.Model))
	p.put(gpu.FieldUUID, text(string(d.UUID)))
	p.put(fieldVisibleDevices, text(string(d.UUID)))
	p.put(fieldNVMLIndex, gpu.Int(int64(d.Index)))
	p.put(fieldPCIBusID, text(d.PCIBusID))
	p.put(fieldMinor, gpu.Absent(gpu.ReasonBlank))
	if d.Minor >= 0 {
		p.put(fieldMinor, gpu.Int(int64(d.Minor)))
	}
	mode, slices := int64(0), int64(0)
	if d.MIGEnabled {
		mode, slices = 1, int64(p.mostInstances)
	}
	p.put(gpu.FieldMIGMode, gpu.Int(mode))
	p.put(fieldMIGMaxSlices, gpu.Int(slices))
	if p.wants(fieldGPMSupport) {
		supported := int64(0)
		if p.gpmReason() == gpu.ReasonNone {
			supported = 1
		}
		p.put(fieldGPMSupport, gpu.Int(supported))
	}
}

func (p *probe) inforomValid() {
	switch ret := p.device.ValidateInforom(); ret {
	case nvml.SUCCESS:
		p.put(fieldInforomValid, gpu.Int(1))
	case nvml.ERROR_CORRUPTED_INFOROM:
		p.put(fieldInforomValid, gpu.Int(0))
	default:
		p.fail(ret, fieldInforomValid)
	}
}

func (p *probe) pciIDs() {
	info, ret := p.device.GetPciInfo()
	give(p, fieldPCICombinedID, info.PciDeviceId, ret, number)
	give(p, fieldPCISubsystemID, info.PciSubSystemId, ret, number)
}

func (p *probe) computeCapability() {
	major, minor, ret := p.device.GetCudaComputeCapability()
	// DCGM has the major version in the upper half of the word.
	give(p, fieldComputeCapability, major<<16|minor, ret, number)
}

// affinityBytes asks for four words of bits: the binding counts bytes where it says CPUs.
const affinityBytes = 4 * 8

// affinity answers four words of bits, the fields from first on.
func affinity(first gpu.FieldID, function string, get func(nvml.Device) ([]uint, nvml.Return)) *query {
	return &query{
		fields: []gpu.FieldID{first, first + 1, first + 2, first + 3}, needs: []string{function}, static: true,
		read: func(p *probe) {
			words, ret := get(p.device)
			for i := range gpu.FieldID(4) {
				var word uint
				if int(i) < len(words) {
					word = words[i]
				}
				// Bits, not a number: a set highest one makes DCGM's value negative too.
				give(p, first+i, word, ret, func(w uint) gpu.Value { return gpu.Int(int64(w)) })
			}
		},
	}
}

// vgpuLicense is 1 for a vGPU with a licence of whatever kind, 0 for one without and where
// licences do not exist; the latter does not change.
func (p *probe) vgpuLicense() {
	features, ret := p.device.GetGridLicensableFeatures()
	if ret != nvml.SUCCESS {
		p.fail(ret, fieldVGPULicense)
		return
	}
	p.static = features.IsGridLicenseSupported == 0
	licensed := uint32(0)
	if !p.static {
		list := features.GridLicensableFeatures[:]
		for i := range list[:min(int(features.LicensableFeaturesCount), len(list))] {
			licensed |= list[i].FeatureState
		}
	}
	p.put(fieldVGPULicense, flag(licensed))
}

// computeMode is DCGM's number of the mode: 0 for everybody, 1 for nobody, 2 for one process.
func computeMode(m nvml.ComputeMode) gpu.Value {
	switch m {
	case nvml.COMPUTEMODE_PROHIBITED:
		return gpu.Int(1)
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS:
		return gpu.Int(2)
	default:
		return number(m)
	}
}

// brand is DCGM's word for a product line.
func brand(b nvml.BrandType) gpu.Value {
	words := map[nvml.BrandType]string{
		nvml.BRAND_QUADRO: "Quadro", nvml.BRAND_TESLA: "Tesla", nvml.BRAND_NVS: "NVS", nvml.BRAND_GRID: "Grid",
		nvml.BRAND_GEFORCE: "GeForce", nvml.BRAND_TITAN: "Titan",
		nvml.BRAND_NVIDIA_VAPPS: "NVIDIA Virtual Applications", nvml.BRAND_NVIDIA_VPC: "NVIDIA Virtual PC",
		nvml.BRAND_NVIDIA_VCS: "NVIDIA Virtual Compute Server", nvml.BRAND_NVIDIA_VWS: "NVIDIA RTX Virtual Workstation",
		nvml.BRAND_NVIDIA_VGAMING: "NVIDIA vGaming", nvml.BRAND_QUADRO_RTX: "Quadro RTX",
		nvml.BRAND_NVIDIA_RTX: "NVIDIA RTX", nvml.BRAND_NVIDIA: "NVIDIA",
		nvml.BRAND_GEFORCE_RTX: "GeForce RTX", nvml.BRAND_TITAN_RTX: "Titan RTX",
	}
	if word, known := words[b]; known {
		return gpu.Text(word)
	}
	return gpu.Text("Unknown")
}
