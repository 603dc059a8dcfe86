package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// EnvPrefix begins the name of every environment variable that overrides a key.
const EnvPrefix = "SIGNALBOX_"

func envName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// serviceLink matches the variables that Kubernetes adds to every container for
// a Service named signalbox.
var serviceLink = regexp.MustCompile(`^SIGNALBOX_(SERVICE_(HOST|PORT)|PORT)(_|$)`)

// loadEnv applies the variables with our prefix. Names are looked up among the
// known keys, since "_" stands both for a dot and for itself.
func (l *loader) loadEnv(env []string) {
	values := map[string]string{}
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			values[name] = value
		}
	}
	byName := map[string]leaf{}
	for _, f := range leaves() {
		byName[f.env] = f
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p := place{layer: layerEnv, name: name}
		f, ok := byName[name]
		if !ok {
			l.fail(p, "", "no key of the configuration has this variable", unknownEnvHint(name, slices.Sorted(maps.Keys(byName))))
			continue
		}
		l.text(p, f, values[name])
	}
}

func unknownEnvHint(name string, known []string) string {
	var inside []string
	for _, k := range known {
		if strings.HasPrefix(k, name+"_") {
			inside = append(inside, k)
		}
	}
	switch best := nearest(name, known); {
	case serviceLink.MatchString(name):
		return "Kubernetes sets it for a Service named signalbox: set enableServiceLinks: false in the pod, or rename the Service"
	case len(inside) > 0:
		return "it is a section; set its keys, such as " + inside[0]
	case best != "":
		return "did you mean " + best + "?"
	default:
		return "unset it; the name is " + EnvPrefix + " and the key in capitals with _ for dots, such as " + envName("bus.max_age")
	}
}

// loadFlags applies overrides by dotted key.
func (l *loader) loadFlags(overrides map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		f, ok := leafByKey(key)
		p := place{layer: layerFlag, name: "--set " + key}
		if flag := f.tag.Get("flag"); flag != "" {
			p.name = "--" + flag
		}
		if !ok {
			problem, hint := unknownKey(key)
			l.fail(p, key, problem, hint)
			continue
		}
		l.text(p, f, overrides[key])
	}
}

// unknownKey says what may have been meant by a key that does not exist.
func unknownKey(key string) (problem, hint string) {
	if isSection(key) {
		return "is a section, not a key", "set one of its keys"
	}
	best := nearest(key, leafKeys())
	if best == "" {
		// The right name in the wrong section.
		last := key[strings.LastIndexByte(key, '.')+1:]
		for _, k := range leafKeys() {
			if strings.HasSuffix(k, "."+last) {
				best = k
				break
			}
		}
	}
	if best == "" {
		return "unknown key", "remove it; config.yaml lists every key"
	}
	return "unknown key", "did you mean " + best + "?"
}
