// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/gpu"
)

// focusColumn is one column of the dataset. An empty value is null.
type focusColumn struct {
	name string
	of   func(b *bill.Bill, o *FOCUSOptions, c *charge) value
}

const (
	focusTime  = "2006-01-02T15:04:05Z"
	focusUnit  = "GPU-Hours"
	allocated  = "Allocated"
	correction = "Correction"
)

// focusColumns are the columns of a version: FOCUS' own by name, custom ones after them.
func focusColumns(version string) []focusColumn {
	columns := slices.Concat(accountColumns(), chargeColumns(), focusCostColumns(), resourceColumns())
	custom := customColumns()
	if version == "1.2" {
		columns = append(columns, namespaceColumns()...)
		for _, c := range allocatedColumns() {
			c.name = "x_" + c.name
			custom = append(custom, c)
		}
	} else {
		columns = append(columns, allocatedColumns()...)
		columns = append(columns,
			focusColumn{"HostProviderName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.Host) }},
			focusColumn{"ServiceProviderName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.Provider) }})
	}
	byName := func(a, b focusColumn) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(columns, byName)
	slices.SortFunc(custom, byName)
	return append(columns, custom...)
}

func accountColumns() []focusColumn {
	return []focusColumn{
		{"BillingAccountId", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.BillingAccountID) }},
		{"BillingAccountName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.BillingAccountName) }},
		{"BillingCurrency", func(b *bill.Bill, _ *FOCUSOptions, _ *charge) value { return ours(b.Currency) }},
		{"BillingPeriodStart", func(b *bill.Bill, _ *FOCUSOptions, _ *charge) value { return ours(b.From.UTC().Format(focusTime)) }},
		{"BillingPeriodEnd", func(b *bill.Bill, _ *FOCUSOptions, _ *charge) value { return ours(b.To.UTC().Format(focusTime)) }},
		{"InvoiceId", func(b *bill.Bill, o *FOCUSOptions, _ *charge) value {
			if o.Showback {
				return value{}
			}
			return ours(b.ID)
		}},
		{"InvoiceIssuerName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.Issuer) }},
		{"ProviderName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.Provider) }},
		{"PublisherName", func(_ *bill.Bill, o *FOCUSOptions, _ *charge) value { return foreign(o.Provider) }},
		{"ServiceCategory", word("Compute")},
		{"ServiceName", word("GPU on Kubernetes")},
		{"ServiceSubcategory", word("Containers")},
	}
}

func word(text string) func(*bill.Bill, *FOCUSOptions, *charge) value {
	return func(*bill.Bill, *FOCUSOptions, *charge) value { return ours(text) }
}

// usage is a column that only charges with an item have.
func usage(name string, of func(c *charge) value) focusColumn {
	return focusColumn{name, func(_ *bill.Bill, _ *FOCUSOptions, c *charge) value {
		if c.item == nil {
			return value{}
		}
		return of(c)
	}}
}

func chargeColumns() []focusColumn {
	return []focusColumn{
		{"ChargeCategory", func(_ *bill.Bill, _ *FOCUSOptions, c *charge) value {
			if c.item == nil {
				return ours("Adjustment")
			}
			return ours("Usage")
		}},
		usage("ChargeClass", func(c *charge) value {
			if c.item.Kind == bill.KindAdjustment {
				return ours(correction)
			}
			return value{}
		}),
		{"ChargeDescription", func(b *bill.Bill, _ *FOCUSOptions, c *charge) value {
			if c.item == nil {
				return ours("Rounding of the amounts on the bill")
			}
			return foreign(fmt.Sprintf("%s, GPU %d of node %s, at %s %s per GPU-hour", skuOf(c.item), c.item.CardIndex, c.node.Node, c.item.Price.Hour, b.Currency))
		}},
		{"ChargeFrequency", func(_ *bill.Bill, _ *FOCUSOptions, c *charge) value {
			if c.item == nil {
				return ours("One-Time")
			}
			return ours("Usage-Based")
		}},
		{"ChargePeriodStart", func(b *bill.Bill, _ *FOCUSOptions, c *charge) value {
			if c.item == nil {
				return ours(b.From.UTC().Format(focusTime))
			}
			start, _ := chargePeriod(c.item)
			return ours(start)
		}},
		{"ChargePeriodEnd", func(b *bill.Bill, _ *FOCUSOptions, c *charge) value {
			if c.item == nil {
				return ours(b.To.UTC().Format(focusTime))
			}
			_, end := chargePeriod(c.item)
			return ours(end)
		}},
	}
}

// chargePeriod is when a charge was incurred: for a correction when what it corrects was.
func chargePeriod(item *bill.Item) (start, end string) {
	from, to := item.Start, item.End
	if c := item.Correction; item.Kind == bill.KindAdjustment && c != nil && !c.FromTime.IsZero() && c.ToTime.After(c.FromTime) {
		from, to = c.FromTime, c.ToTime
	}
	// The end is exclusive and in whole seconds as the start is, so it is the next one.
	return from.UTC().Format(focusTime), to.Add(time.Second - 1).UTC().Format(focusTime)
}

func focusCostColumns() []focusColumn {
	number := func(name string, of func(*charge) decimal.Decimal) focusColumn {
		return usage(name, func(c *charge) value { return ours(of(c).String()) })
	}
	total := func(name string, of func(*charge) decimal.Decimal) focusColumn {
		return focusColumn{name, func(_ *bill.Bill, _ *FOCUSOptions, c *charge) value { return ours(of(c).String()) }}
	}
	quantity := func(c *charge) decimal.Decimal { return c.quantity }
	return []focusColumn{
		{"BilledCost", func(_ *bill.Bill, o *FOCUSOptions, c *charge) value {
			if o.Showback {
				return ours("0")
			}
			return ours(c.billed.String())
		}},
		total("EffectiveCost", func(c *charge) decimal.Decimal { return c.billed }),
		total("ContractedCost", func(c *charge) decimal.Decimal { return c.listed }),
		total("ListCost", func(c *charge) decimal.Decimal { return c.listed }),
		number("ListUnitPrice", func(c *charge) decimal.Decimal { return c.item.Price.Hour }),
		number("ContractedUnitPrice", func(c *charge) decimal.Decimal { return c.item.Price.Hour }),
		// What is metered is what is held, in the unit that is priced.
		number("PricingQuantity", quantity),
		usage("PricingUnit", func(*charge) value { return ours(focusUnit) }),
		usage("PricingCategory", func(*charge) value { return ours("Standard") }),
		number("ConsumedQuantity", quantity),
		usage("ConsumedUnit", func(*charge) value { return ours(focusUnit) }),
	}
}

// skuOf is what is priced: a model of GPU. What MIG devices or shares of it cost are prices of the same.
func skuOf(item *bill.Item) string {
	if item.Model == "" {
		return "unknown GPU"
	}
	return item.Model
}

func resourceColumns() []focusColumn {
	return []focusColumn{
		usage("ResourceId", func(c *charge) value { return foreign(string(c.item.Card)) }),
		usage("ResourceName", func(c *charge) value { return foreign(nodeName(c.node) + "/gpu" + strconv.Itoa(c.item.CardIndex)) }),
		usage("ResourceType", func(*charge) value { return ours("GPU") }),
		usage("SkuId", func(c *charge) value { return foreign(skuOf(c.item)) }),
		usage("SkuMeter", func(*charge) value { return ours("GPU time held") }),
		usage("SkuPriceId", func(c *charge) value {
			return foreign(strings.Join([]string{skuOf(c.item), c.item.Price.Version, c.item.Price.Entry, c.item.Price.Hour.String()}, "/"))
		}),
		usage("SkuPriceDetails", func(c *charge) value {
			return object(map[string]any{"GpuCount": 1, "x_GpuModel": skuOf(c.item)})
		}),
		usage("Tags", func(c *charge) value { return tags(c.node.Labels) }),
	}
}

// namespaceColumns are those of version 1.2, where no column of an allocated charge says whose it is. In 1.3 they
// would break the rule that its other dimensions are the origin's.
func namespaceColumns() []focusColumn {
	namespace := func(c *charge) value { return foreign(c.item.Namespace) }
	return []focusColumn{
		usage("SubAccountId", namespace),
		usage("SubAccountName", namespace),
		usage("SubAccountType", func(c *charge) value {
			if c.item.Namespace == "" {
				return value{}
			}
			return ours("Namespace")
		}),
	}
}

// allocatedColumns say which part of its origin a charge is, and whose. The part that nobody held has no resource:
// its reason is in the details.
func allocatedColumns() []focusColumn {
	return []focusColumn{
		{allocated + "MethodId", func(b *bill.Bill, _ *FOCUSOptions, c *charge) value {
			switch {
			case c.item == nil:
				return value{}
			case b.PolicyVersion == "":
				return ours("gpumeter")
			}
			return foreign(b.PolicyVersion)
		}},
		usage(allocated+"MethodDetails", methodDetails),
		usage(allocated+"ResourceId", func(c *charge) value {
			switch {
			case c.item.Cause != "":
				return value{}
			case c.item.PodUID != "":
				return foreign(c.item.PodUID)
			}
			return foreign(c.item.Namespace + "/" + c.item.Pod)
		}),
		usage(allocated+"ResourceName", func(c *charge) value {
			if c.item.Cause != "" {
				return value{}
			}
			return foreign(c.item.Namespace + "/" + c.item.Pod)
		}),
		usage(allocated+"Tags", allocatedTags),
	}
}

// methodElement is FOCUS' word for one factor of an allocation; ours is the only one.
type methodElement struct {
	AllocatedRatio json.Number `json:"AllocatedRatio"`
	UsageUnit      string      `json:"UsageUnit"`
	UsageQuantity  json.Number `json:"UsageQuantity"`
	Mode           string      `json:"x_SharingMode,omitempty"`
	Profile        string      `json:"x_MigProfile,omitempty"`
	Reason         string      `json:"x_UnallocatedReason,omitempty"`
}

func methodDetails(c *charge) value {
	text, err := json.Marshal(map[string]any{"Elements": []methodElement{{
		AllocatedRatio: json.Number(c.ratio.String()), UsageUnit: focusUnit, UsageQuantity: json.Number(c.quantity.String()),
		Mode: string(c.item.Mode), Profile: c.item.Profile, Reason: string(c.item.Cause),
	}}})
	if err != nil {
		return value{}
	}
	return ours(string(text))
}

// allocatedTags are what is known of the holder: our own words, and the pod's labels under a prefix, since Tags
// have the node's without one.
func allocatedTags(c *charge) value {
	all := make(map[string]string)
	for key, label := range c.item.Labels {
		all["pod/"+key] = label
	}
	for key, known := range map[string]string{
		"namespace": c.item.Namespace, "pod": c.item.Pod, "container": c.item.Container,
		"workload": c.item.Workload, "workload-kind": c.item.WorkloadKind, "unallocated-reason": string(c.item.Cause),
	} {
		if known != "" {
			all["gpumeter/"+key] = known
		}
	}
	return tags(all)
}

func tags(all map[string]string) value {
	if len(all) == 0 {
		return value{}
	}
	values := make(map[string]any, len(all))
	for key, text := range all {
		if values[key] = text; text == "" {
			values[key] = true
		}
	}
	return object(values)
}

// object is a JSON object, keys in their order; what it holds can always be written.
func object(values map[string]any) value {
	text, err := json.Marshal(values)
	if err != nil {
		return value{}
	}
	return ours(string(text))
}

func customColumns() []focusColumn {
	text := func(name string, of func(c *charge) string) focusColumn {
		return usage("x_"+name, func(c *charge) value { return foreign(of(c)) })
	}
	return []focusColumn{
		text("Cluster", func(c *charge) string { return c.node.Cluster }),
		text("Node", func(c *charge) string { return c.node.Node }),
		text("Namespace", func(c *charge) string { return c.item.Namespace }),
		text("Pod", func(c *charge) string { return c.item.Pod }),
		text("PodUid", func(c *charge) string { return c.item.PodUID }),
		text("Container", func(c *charge) string { return c.item.Container }),
		text("Workload", func(c *charge) string { return c.item.Workload }),
		text("KubernetesResource", func(c *charge) string { return c.item.Resource }),
		text("SharingMode", func(c *charge) string { return string(c.item.Mode) }),
		text("MigProfile", func(c *charge) string { return c.item.Profile }),
		text("UnallocatedReason", func(c *charge) string { return string(c.item.Cause) }),
		text("OriginId", func(c *charge) string { return c.origin }),
		usage("x_DiscountPercent", func(c *charge) value { return ours(c.item.Price.Discount.String()) }),
		text("DiscountSource", func(c *charge) string { return strings.Join(slices.Concat(c.item.Price.Sources, c.item.Quotas), "; ") }),
		text("PriceVersion", func(c *charge) string { return c.item.Price.Version }),
		usage("x_GpuInstanceId", func(c *charge) value {
			if c.item.GPUInstance == gpu.NoInstance {
				return value{}
			}
			return ours(strconv.Itoa(c.item.GPUInstance))
		}),
		usage("x_UsedQuantity", func(c *charge) value {
			if len(c.item.Used) == 0 {
				return value{}
			}
			used := decimal.Zero
			for _, micros := range c.item.Used {
				used = used.Add(decimal.NewFromInt(micros))
			}
			return ours(used.DivRound(decimal.NewFromInt(hourMicros), 9).String())
		}),
		usage("x_CorrectionReason", func(c *charge) value {
			if c.item.Correction == nil {
				return value{}
			}
			return foreign(c.item.Correction.Reason)
		}),
	}
}
