// Package config is the configuration of the program: a plain struct whose
// docstrings are the reference, its defaults, and the strict reading of a YAML
// file, environment variables and flags over them.
//
// Nothing is ignored. An unknown or repeated key, a value of the wrong type or
// without its unit, a number out of range and a combination that cannot work are
// errors that name file, line and key and say what to do; all of them are
// reported at once. Later layers win: defaults, file, environment, flags.
//
// Every key has an environment variable: SIGNALBOX_ and the key in capitals with
// underscores for dots. A SIGNALBOX_ variable that no key has is an error as
// well. Lists in variables and flags are YAML flow text.
package config
