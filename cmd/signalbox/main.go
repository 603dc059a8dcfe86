// Command signalbox is a message bus for fleets of agents that forgets nothing:
// an embedded NATS server, and a bridge that writes every message to a SQLite
// register exactly once.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
