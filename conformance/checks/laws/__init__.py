"""Laws: properties of every BERT that hold for any weights and can be tested without a reference, one module per topic."""
