"""What questions find: results with named, typed columns, from which every view, table and store is made."""
