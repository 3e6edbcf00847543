"""A fleet under open-loop load: many gateways with the live decision, servers with queues, a day of traffic."""
