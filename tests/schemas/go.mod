module github.com/gpumeter/gpumeter/tests/schemas

go 1.26.7

require (
	github.com/gpumeter/gpumeter v0.0.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	go.yaml.in/yaml/v3 v3.0.6
)

require (
	github.com/shopspring/decimal v1.6.0 // indirect
	go.etcd.io/bbolt v1.5.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/gpumeter/gpumeter => ../..
