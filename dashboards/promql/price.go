// SPDX-License-Identifier: Apache-2.0

package promql

// Prices are what an hour of a whole GPU costs, by model and currency: from the rules that `gpumeter prices rules` writes, and for
// models that have none there, the price typed into the dashboard, unless that is 0.
func Prices() string {
	models := By("group", []string{"model"}, Or("gpumeter_capacity_gpu_seconds_total", "last_over_time(gpumeter:capacity_gpu_seconds:hourly[$__range])"))
	return "(" + Or(
		By("max", []string{"model", "currency"}, "gpumeter:price_per_gpu_hour"),
		Set("("+models+" * ($price) > 0)", "currency", "typed")+" unless on (model) gpumeter:price_per_gpu_hour") + ")"
}

// Cost is what GPU-hours cost; they are by model. The currency is a label.
func Cost(hours string) string {
	return hours + " * on (model) group_left (currency) " + Prices()
}
