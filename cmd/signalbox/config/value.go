package config

import (
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// textParser is a value with its own syntax, such as Duration.
type textParser interface{ parse(text string) error }

// parseNode reads a scalar of a file. The kinds of YAML are kept apart: a number
// in quotes is not a number, and a bare 1 is not text.
func parseNode(dst reflect.Value, tag reflect.StructTag, n ast.Node) error {
	text, ok := scalarText(n)
	switch n.(type) {
	case *ast.NullNode:
		return mistake{"has no value", noValueHint(dst, tag)}
	case *ast.AliasNode, *ast.AnchorNode, *ast.TagNode:
		return mistake{describe(n) + " is not supported", "write the value itself"}
	}
	if !ok {
		return mistake{"holds " + describe(n) + " instead of " + wanted(dst), ""}
	}
	if _, own := dst.Addr().Interface().(textParser); own {
		return parseText(dst, tag, text)
	}
	right := false
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		right = dst.Kind() == reflect.String
	case *ast.BoolNode:
		right = dst.Kind() == reflect.Bool
	case *ast.IntegerNode:
		right = dst.Kind() == reflect.Int || dst.Kind() == reflect.Float64
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		right = dst.Kind() == reflect.Float64
	}
	if !right {
		hint := ""
		switch {
		case dst.Kind() == reflect.String:
			hint = "put it in quotes"
		case isNumber(text) && describe(n) == "text":
			hint = "write it without quotes"
		case isNumber(text):
			hint = "write it without a fraction"
		}
		return mistake{quote(text) + " is " + describe(n) + ", not " + wanted(dst), hint}
	}
	return parseText(dst, tag, text)
}

func noValueHint(dst reflect.Value, tag reflect.StructTag) string {
	if _, empty := tag.Lookup("empty"); empty || dst.Kind() == reflect.String {
		return `write "" for empty, or remove the line`
	}
	return "write " + wanted(dst) + ", or remove the line"
}

// parseText sets dst from the text of a value.
func parseText(dst reflect.Value, tag reflect.StructTag, text string) error {
	if instead, ok := tag.Lookup("empty"); ok && text == "" {
		text = instead
	}
	if p, ok := dst.Addr().Interface().(textParser); ok {
		return p.parse(text)
	}
	switch dst.Kind() {
	case reflect.String:
		dst.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return mistake{quote(text) + " is not a boolean", "write true or false"}
		}
		dst.SetBool(text == "true")
	case reflect.Int:
		return parseInt(dst, text)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return mistake{quote(text) + " is not a number", "write a number such as 0.2"}
		}
		dst.SetFloat(f)
	default:
		panic("config: cannot set " + dst.Type().String())
	}
	return nil
}

// parseInt takes decimal digits, with _ between them for the eye. A leading zero
// is refused, since YAML 1.1 reads it as octal and 1.2 as decimal.
func parseInt(dst reflect.Value, text string) error {
	digits := strings.ReplaceAll(text, "_", "")
	n, err := strconv.Atoi(digits)
	if err != nil || (digits != "0" && strings.HasPrefix(strings.TrimLeft(digits, "+-"), "0")) {
		return mistake{quote(text) + " is not a whole number", "write decimal digits such as 1000"}
	}
	dst.SetInt(int64(n))
	return nil
}

func wanted(dst reflect.Value) string {
	switch dst.Addr().Interface().(type) {
	case *Duration:
		return "a duration such as 72h"
	case *SyncInterval:
		return "a duration such as 1s, or always"
	case *Size:
		return "a size such as 64MiB"
	case *Switch:
		return "on or off"
	}
	switch dst.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	default:
		return "a number"
	}
}

func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// describe is what a node is, in the words of someone who writes YAML.
func describe(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.BoolNode:
		return "a boolean"
	case *ast.IntegerNode:
		return "a whole number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys of its own"
	case *ast.AliasNode:
		return "an alias (*)"
	case *ast.AnchorNode:
		return "an anchor (&)"
	case *ast.TagNode:
		return "a tag (!)"
	case *ast.DirectiveNode:
		return "a directive (%)"
	}
	return "something else"
}
