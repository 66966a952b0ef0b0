// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	sdk "github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"github.com/gpumeter/gpumeter/dashboards/promql"
)

const all = ".*"

func datasource() sdk.VariableModel {
	return sdk.VariableModel{
		Type: sdk.VariableTypeDatasource, Name: "datasource", Label: new("Prometheus"), Query: words("prometheus"),
		Description: new("The Prometheus, Thanos or Mimir that scrapes the exporters."),
	}
}

func words(s string) *sdk.StringOrMap { return &sdk.StringOrMap{String: new(s)} }

// choice is a variable whose values are asked for; All matches everything, absent labels too.
func choice(name, title, description, query, regex string) sdk.VariableModel {
	return sdk.VariableModel{
		Type: sdk.VariableTypeQuery, Name: name, Label: new(title), Description: new(description),
		Datasource: &common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")},
		Query:      words(query), Definition: new(query), Regex: new(regex),
		Multi: new(true), IncludeAll: new(true), AllValue: new(all), AllowCustomValue: new(true),
		Current: &sdk.VariableOption{
			Text:  sdk.StringOrArrayOfString{ArrayOfString: []string{"All"}},
			Value: sdk.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
		},
		Refresh: new(sdk.VariableRefreshOnTimeRangeChanged), Sort: new(sdk.VariableSortNaturalAsc),
	}
}

// variables are those of every page.
func variables() []sdk.VariableModel {
	namespaces := "query_result(" + promql.Namespaces() + ")"
	pods := "query_result(" + promql.Pods() + ")"
	return []sdk.VariableModel{
		datasource(),
		choice("cluster", "Cluster", "Clusters by the label of the scrape or by --cluster-name.",
			"label_values(gpumeter_ledger_info, cluster)", ""),
		choice("node", "Node", "Nodes of the chosen clusters.",
			`label_values(gpumeter_ledger_info{cluster=~"$cluster"}, node)`, ""),
		choice("model", "Model", "Models of GPUs.", "label_values(gpumeter_capacity_gpu_seconds_total, model)", ""),
		choice("namespace", "Namespace", "Who holds. With one chosen, GPUs are those that it holds a part of.", namespaces, `/namespace="([^"]+)"/`),
		choice("pod", "Pod", "Pods of the chosen namespaces that hold a part of a GPU or have just done so.", pods, `/pod="([^"]+)"/`),
	}
}

// singleNode makes of the variables those of a page that shows single nodes: All is no choice, so that nobody asks for a fleet by
// accident, and a hidden variable has the nodes' addresses, so that the server need not read every node.
func singleNode(vars []sdk.VariableModel) []sdk.VariableModel {
	for i, v := range vars {
		if v.Name == "node" {
			vars[i].IncludeAll, vars[i].AllValue, vars[i].Current = new(false), nil, nil
		}
	}
	address := choice("instance", "Instance", "The addresses at which the nodes' exporters are scraped.",
		`label_values(gpumeter_ledger_info{cluster=~"$cluster",node=~"$node"}, instance)`, "")
	address.AllValue, address.Hide = nil, new(sdk.VariableHideHideVariable)
	return append(vars, address)
}

// price is what an hour of a GPU costs where no rule says it.
func price() sdk.VariableModel {
	return sdk.VariableModel{
		Type: sdk.VariableTypeTextbox, Name: "price", Label: new("Price per GPU-hour"), Query: words("0"),
		Description: new("For models without a rule from `gpumeter prices rules`. 0 is no price: then there is no cost."),
		Current: &sdk.VariableOption{
			Text: sdk.StringOrArrayOfString{String: new("0")}, Value: sdk.StringOrArrayOfString{String: new("0")},
		},
	}
}

// links are the other dashboards, with what is chosen here.
func (d Dashboard) links() []sdk.DashboardLink {
	var links []sdk.DashboardLink
	for _, other := range [][2]string{
		{"fleet", "Fleet"}, {"node", "Node"}, {"sharing", "Sharing"}, {"chargeback", "Chargeback"}, {"health", "Health"}, {"gpumeter", "gpumeter"},
	} {
		if other[0] != d.Name {
			links = append(links, sdk.DashboardLink{
				Title: other[1], Type: sdk.DashboardLinkTypeLink, Icon: "dashboard", Url: new("/d/gpumeter-" + other[0]), Tags: []string{},
				IncludeVars: true, KeepTime: other[0] != "chargeback" && d.Name != "chargeback",
			})
		}
	}
	return append(links, sdk.DashboardLink{
		Title: "Documentation", Type: sdk.DashboardLinkTypeLink, Icon: "doc", Url: new(docs + "dashboards.md"), Tags: []string{}, TargetBlank: true,
	})
}

const docs = "https://github.com/gpumeter/gpumeter/blob/main/docs/"

// drill is a link from a cell to another dashboard: pairs of a variable and what it becomes there. Other variables keep their values.
func drill(title, board string, set ...string) sdk.DashboardLink {
	var query []string
	given := map[string]bool{}
	for i := 0; i+1 < len(set); i += 2 {
		given[set[i]] = true
		query = append(query, "var-"+set[i]+"="+set[i+1])
	}
	for _, name := range []string{"datasource", "cluster", "node", "model", "namespace", "pod"} {
		if !given[name] {
			query = append(query, "${"+name+":queryparam}")
		}
	}
	address := "/d/gpumeter-" + board + "?" + strings.Join(append(query, "${__url_time_range}"), "&")
	return sdk.DashboardLink{Title: title, Type: sdk.DashboardLinkTypeLink, Url: new(address), Tags: []string{}}
}

// cell is the text in the row's cell of a column.
func cell(title string) string { return `${__data.fields["` + title + `"]}` }

func toNode() sdk.DashboardLink {
	return drill("Open the node", "node", "node", cell("Node"), "namespace", "$__all", "pod", "$__all")
}

func external(title, address string) sdk.DashboardLink {
	return sdk.DashboardLink{Title: title, Type: sdk.DashboardLinkTypeLink, Url: new(address), Tags: []string{}, TargetBlank: true}
}
