// SPDX-License-Identifier: Apache-2.0

package prices

import "strings"

// currencyDecimals is how many decimals ISO 4217 gives a currency's amounts, or false for a code that is none.
func currencyDecimals(code string) (int32, bool) {
	if len(code) != 3 {
		return 0, false
	}
	for _, class := range []struct {
		decimals int32
		codes    string
	}{
		{0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"},
		{3, "BHD IQD JOD KWD LYD OMR TND"},
		{4, "CLF UYW"},
		{2, `AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE
			CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG
			HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK
			MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE
			SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW
			ZWG`},
	} {
		for known := range strings.FieldsSeq(class.codes) {
			if known == code {
				return class.decimals, true
			}
		}
	}
	return 0, false
}
