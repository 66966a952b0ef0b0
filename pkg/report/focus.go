// SPDX-License-Identifier: Apache-2.0

package report

import (
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/gpumeter/gpumeter/pkg/bill"
	"github.com/gpumeter/gpumeter/pkg/sharing"
)

// FOCUSOptions are what FOCUS asks for and a bill does not know.
type FOCUSOptions struct {
	// BillingAccountID and BillingAccountName are whose bill it is. An empty ID is the cluster's name where all
	// nodes are of one, else "gpumeter"; an empty name is the ID.
	BillingAccountID, BillingAccountName string
	// Issuer is who issues the bill, Provider who makes the GPUs available, Host who owns the machines. An empty
	// Issuer is "gpumeter"; each of the others that is empty is as the one before it.
	Issuer, Provider, Host string
	// Showback says that nobody is invoiced: BilledCost is 0 and there is no InvoiceId; the other costs stand.
	Showback bool
}

// FOCUSVersions are the versions that FOCUS writes.
func FOCUSVersions() []string { return []string{"1.2", "1.3"} }

// FOCUS writes what b is made of as a dataset of FOCUS version "1.2" or "1.3", one charge per item: b must have
// prices and have been made by pods.
//
// A charge is the holder's part of an origin charge, which is one GPU in one window at its list price. The parts of an
// origin, those that nobody held among them, add up to exactly 1; 1.3 has columns for that, in 1.2 they are custom
// ones. ListCost and ContractedCost are the exact products of quantity and list price, since an allocated charge has its
// origin's unit prices; discounts, quotas and the share of what nobody held are in EffectiveCost and BilledCost, whose
// sum is the bill's total: an Adjustment for the rounding of its amounts, and of its list cost, comes last.
func FOCUS(w io.Writer, b *bill.Bill, version string, o FOCUSOptions) error {
	if !slices.Contains(FOCUSVersions(), version) {
		return fmt.Errorf("write the report as FOCUS %s: want version %s", version, strings.Join(FOCUSVersions(), " or "))
	}
	charges, err := focusCharges(b)
	if err != nil {
		return fmt.Errorf("write the report as FOCUS %s: %w", version, err)
	}
	o = o.filled(b)
	columns := focusColumns(version)
	out := csv.NewWriter(w)
	out.UseCRLF = true
	record := make([]string, len(columns))
	for i, c := range columns {
		record[i] = c.name
	}
	_ = out.Write(record) // Flush tells
	for i := range charges {
		for n, c := range columns {
			record[n] = field(c.of(b, &o, &charges[i]))
		}
		_ = out.Write(record)
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write the report as FOCUS %s: %w", version, err)
	}
	return nil
}

func (o FOCUSOptions) filled(b *bill.Bill) FOCUSOptions {
	or := func(text *string, instead string) {
		if *text == "" {
			*text = instead
		}
	}
	cluster := "gpumeter"
	if len(b.Nodes) > 0 && b.Nodes[0].Cluster != "" && !slices.ContainsFunc(b.Nodes, func(n bill.Node) bool { return n.Cluster != b.Nodes[0].Cluster }) {
		cluster = b.Nodes[0].Cluster
	}
	or(&o.BillingAccountID, cluster)
	or(&o.BillingAccountName, o.BillingAccountID)
	or(&o.Issuer, "gpumeter")
	or(&o.Provider, o.Issuer)
	or(&o.Host, o.Provider)
	return o
}

// charge is one row of the dataset. The last one, which evens out the bill's rounding, has no item.
type charge struct {
	item *bill.Item
	node *bill.Node
	// origin names the charge that this one is a part of; ratio is which part.
	origin string
	ratio  decimal.Decimal
	// quantity is in GPU-hours; listed is what it costs at the list price, billed what is paid for it.
	quantity, listed, billed decimal.Decimal
}

// focusCharges are the charges of b, in its order.
func focusCharges(b *bill.Bill) ([]charge, error) {
	switch {
	case !priced(b):
		return nil, errors.New("the bill has no prices, and FOCUS is of costs: give a price book")
	case b.OfHolders:
		return nil, errors.New("the bill shows only what some namespaces or pods held, and FOCUS is of whole GPUs: make it without these filters")
	}
	var charges []charge
	for i := range b.Rows {
		for j := range b.Rows[i].Items {
			item := &b.Rows[i].Items[j]
			switch {
			case item.GPU == 0:
				continue
			case item.Card == "":
				return nil, fmt.Errorf("row %s was not made by pods, and FOCUS is of single GPUs: make the bill with the detail of pods", b.Rows[i].ID)
			case item.Node < 0 || item.Node >= len(b.Nodes):
				return nil, fmt.Errorf("row %s has an item of node %d, and there are %d nodes", b.Rows[i].ID, item.Node, len(b.Nodes))
			}
			charges = append(charges, newCharge(b, item, len(charges)))
		}
	}
	if err := divideOrigins(charges); err != nil {
		return nil, err
	}
	return evenOut(b, charges)
}

func newCharge(b *bill.Bill, item *bill.Item, n int) charge {
	c := charge{item: item, node: &b.Nodes[item.Node], billed: decimalOf(item.Net.Add(item.Idle))}
	start, end := chargePeriod(item)
	facts := []string{string(item.Card), c.node.LedgerID, start, end, skuOf(item), item.Price.Version, item.Price.Entry, item.Price.Hour.String()}
	if item.Kind == bill.KindAdjustment {
		// Each correction is of another charge of the past, and a whole by itself.
		facts = append(facts, fmt.Sprintf("correction %d", n))
	}
	digest := sha256.Sum256([]byte(strings.Join(facts, "\x00")))
	c.origin = hex.EncodeToString(digest[:12])
	return c
}

// decimalOf is f with as many decimals as a quantity has.
func decimalOf(f sharing.Fraction) decimal.Decimal {
	num, den, slash := strings.Cut(f.String(), "/")
	d, err := decimal.NewFromString(num)
	if err != nil || !slash {
		return d
	}
	by, err := decimal.NewFromString(den)
	if err != nil {
		return d
	}
	return d.DivRound(by, ratioDecimals)
}

// evenOut adds the charge that makes the sums of all the bill's total and list cost. Corrections are in no list cost of
// the bill.
func evenOut(b *bill.Bill, charges []charge) ([]charge, error) {
	exact, listed := decimal.Zero, decimal.Zero
	for i := range charges {
		exact = exact.Add(charges[i].billed)
		if charges[i].item.Kind != bill.KindAdjustment {
			listed = listed.Add(charges[i].listed)
		}
	}
	apart := b.Total.TotalCost.Sub(exact)
	// A cent for each sum of the total, and what 12 decimals of each can come to.
	allowed := decimal.New(2, -b.Decimals).Add(decimal.New(int64(len(charges)), -ratioDecimals))
	if apart.Abs().GreaterThan(allowed) {
		return nil, fmt.Errorf("its items cost %s %s and its total is %s: the bill was not made of all of its items", exact, b.Currency, b.Total.TotalCost)
	}
	listApart := b.Total.ListCost.Sub(listed)
	if apart.IsZero() && listApart.IsZero() {
		return charges, nil
	}
	return append(charges, charge{listed: listApart, billed: apart}), nil
}
