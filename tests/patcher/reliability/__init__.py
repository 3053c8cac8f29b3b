"""The whole command line under faults, kills, races, hostile trees and other people: docs/reliability.md is held here."""
